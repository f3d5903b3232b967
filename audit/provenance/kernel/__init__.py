"""The replay kernel: one pass over encoded events that keeps the shadow state of every page.

`layout` names the columns of the state arrays; the other modules hold the handling of one family of events each.
All of it is compiled; see `kvwitness.audit.provenance.jit`.
"""
