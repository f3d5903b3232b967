"""A small inference engine in which a leak can be seen: paged attention over real bytes, and faults to switch on.

`text` and `model` are a transformer whose weights are made by hand, `pool` the pages, `prefill`, `decode` and
`transfer` two engines and what goes between them, `cluster` a deployment of both, `traffic` what is sent to it, and
`run` one run. It records itself with the tracer that any other engine would use, and `judge` asks `kvwitness` from
outside. torch is needed; nothing here is imported by the rest of the tracer.
"""
