"""Evidence from the bytes of pages: keyed fingerprints.

`reference` says in plain Python what a fingerprint is, `layout` how a cache lies in memory, and `fingerprint` computes
the same numbers with torch, on whatever device the cache is. torch is needed by the last two alone.
"""
