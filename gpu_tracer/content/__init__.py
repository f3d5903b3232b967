"""Evidence from the bytes of pages: keyed fingerprints, and marks.

`reference` says in plain Python what a fingerprint is, `layout` how a cache lies in memory, and `fingerprint` computes
the same numbers with torch, on whatever device the cache is, or with the Triton kernel of `kernel`, which is told by
`geometry` where the bytes are. `transfer` lets ends be compared whose pages or ranks differ. `lanes` takes digests
beside a running engine, and `seal` hides all of them but which are equal. `canary` marks the rows of freed pages,
`honeypot` fills pages that nobody gets, `search` finds known content in the pages of others, and `cost` counts bytes.
`reference`, `seal` and `cost` do without torch.
"""
