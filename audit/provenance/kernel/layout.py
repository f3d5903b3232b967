"""The records that the kernel keeps and reads. Everything is an integer; -1 means "none".

The state of a page fills one 64-byte cache line (`PAGE`), because the replay visits pages in no order and a line is
what one visit costs. What only alloc, free and faults need stands in a second record (`COLD`).
"""

from __future__ import annotations

import numpy as np


def _record(dtype: str, names: str) -> np.dtype[np.void]:
    return np.dtype([(name, dtype) for name in names.split()], align=True)


EVENT = _record(
    "i8",
    "kind actor rp pool p_off p_n tok0 tok1 op phase time gen_given flags ref pool2 rp2 q_off q_n v_off v_n tokens "
    "source key digest",
)
"""An event. `p_*`, `q_*`, `v_*`: its lists of pages, second pages and generations; `rp`: the row of (actor, pool)."""

PAGE = _record("i4", "gen owner sharers next lo hi writer lgen lev lflags origin rd_lo rd_hi step ord flags")
"""A page. `lo` to `origin`: the newest layer of content; `next`: the layer below; `rd_*`: rows that its owner reads."""

COLD = _record("i4", "open_writes previous co_owner alloc_ev free_ev freed_step read_ev reported")

LAYER = _record("i4", "lo hi writer gen ev flags origin next")

OPEN_WRITE = _record("i4", "actor ev gen lo hi op next")
"""A write that was issued and has not landed; with op OP_OPEN_READ the read of one who does not hold the page."""

ACTOR = _record("i8", "tenant type exempt end tainted born")

PAIR = _record("i8", "next cover pending0 pending1 blind share transfer held read reported source began")
"""A request in a pool: next place in its table, positions covered, its shares, transfers and reads (newest first).

`began`: the event with which its present page table began; `blind`: `NO_COVER`, `NO_PLACES`, `STRANGE_PAGES`."""

NO_COVER = 1
"""What the request has in this pool is not known well enough to judge reads by it."""
NO_PLACES = 2
"""It goes on in pages that a session keeps, so that those it got itself do not begin its page table."""
STRANGE_PAGES = 4
"""It uses pages that are not known to be its own, so that its page table may have begun before `began`."""

POOL = _record("i8", "base size tokens ordinals sharing source allocs known traced reporters gap_ev")

"""A pool. `reporters`: bits of the sources that report on it; `gap_ev`: the first event after the last loss at one."""

REPORTERS = 62
"""Sources with a bit of their own in `reporters`; all others share the last."""

SHARE = _record("i8", "actor pool off n tok0 tok1 ev ord next read")
SHARE_PAGE = _record("i4", "page gen flags")
"""`gen` -1: detached. `flags`: 1 admitted, 2 judged sound once."""

PUBLICATION = _record("i8", "ev pool off n actor digest older")
PUBLICATION_PAGE = _record("i4", "page gen pool writer")
"""`writer`: whose the newest content was when the page was published, -1 if it was still to be written."""

TRANSFER = _record(
    "i8",
    "actor src_pool s_off s_n dst_pool d_off d_n tok0 tok1 ev state id older lease s_first d_first "
    "rp1 rp2 writers drained life",
)
"""`writers`, `drained`: bits of the ranks that write, and of those that said that nothing is in flight. `life`: the
event with which this use of the id began."""
TRANSFER_PAGE = _record("i4", "page gen origin flags")
"""`gen`: of a source page that which is meant, of a target that which it had when the transfer began, -1 if it was not
the request's then. `flags`: 1 read at the source, 2 its content was another's (`origin`), 4 it was tainted (`origin`),
8 it was not written, 16 nobody can say."""
TRANSFER_ID = _record("i8", "head lease")

READ = _record("i8", "actor pool ev off n tok0 tok1 op open older")
READ_PAGE = _record("i4", "page gen")

STEP = _record("i8", "pool step open ev")

PIECE = _record("i4", "lo hi writer gen ev flags origin how")
"""A stretch of a page with one writer; scratch space."""

FACT = _record("i8", "code ev a b ev2 since pool x n")
FACT_PAGE = _record("i4", "row page gen lo hi")

COUNTERS = _record(
    "i8",
    "facts facts0 fact_pages layers layer_free open_writes open_write_free shares share_pages publications "
    "publication_pages transfers transfer_pages reads read_pages steps depth page_events orphan_ns ev0 scratch time",
)

TABLES = {
    "pages": PAGE,
    "cold": COLD,
    "layers": LAYER,
    "open_writes": OPEN_WRITE,
    "actors": ACTOR,
    "pairs": PAIR,
    "pools": POOL,
    "shares": SHARE,
    "share_pages": SHARE_PAGE,
    "publications": PUBLICATION,
    "publication_pages": PUBLICATION_PAGE,
    "transfers": TRANSFER,
    "transfer_pages": TRANSFER_PAGE,
    "transfer_ids": TRANSFER_ID,
    "reads": READ,
    "read_pages": READ_PAGE,
    "steps": STEP,
    "scratch": PIECE,
    "facts": FACT,
    "fact_pages": FACT_PAGE,
    "count": COUNTERS,
}
"""The tables of the world that the kernel is given as `w`. `count` is one record: how far the others are filled."""

COLUMNS = {"events": EVENT}
"""Tables of which each field is an array of its own, of 64-bit numbers; the kernel reads them alone."""

LISTS = {"keys": "i8", "listed": "u4", "listed_too": "u4", "generations": "i8"}
"""Plain arrays beside them. `keys`: newest publication of each cache key; the others: lists that events point into."""

N_STEPS = 4096
NOBODY = 0  # actor 0: dummy writes, padding, an engine that names no request

T_REQUEST, T_CACHE, T_SESSION, T_SNAPSHOT, T_ENGINE = range(5)
SHARE_NONE, SHARE_TENANT, SHARE_GLOBAL = range(3)
TS_DONE, TS_FAILED, TS_DRAINED, TS_CLAIMED = 1, 2, 4, 8
"""How a transfer stands; TS_CLAIMED: a report that it brought all of its positions has been judged."""

# kinds
(
    K_NONE,
    K_POOL,
    K_ALLOC,
    K_FREE,
    K_SHARE,
    K_PUBLISH,
    K_UNPUBLISH,
    K_WRITE,
    K_READ,
    K_COPY,
    K_MOVE,
    K_STEP_BEGIN,
    K_STEP_END,
    K_OFFER,
    K_BEGIN,
    K_DONE,
    K_FAILED,
    K_DRAINED,
    K_LEASE,
) = range(19)

# operations of reads and writes
OP_FORWARD, OP_TRANSFER, OP_LOAD, OP_COPY, OP_SCRUB, OP_DUMMY, OP_DECODE, OP_PREFILL, OP_OFFLOAD, OP_OPEN_READ = range(
    10
)

# phases
PH_WHOLE, PH_BEGIN, PH_END = range(3)

# event flags
F_TIMEOUT, F_WINDOW, F_PREEMPT, F_DUMMY, F_RECORD, F_ANYONE, F_LOSS, F_START = (1 << n for n in range(8))

# page flags
PF_KNOWN, PF_RESERVED, PF_OPEN_WRITE, PF_CO, PF_PUBLISHED, PF_KEYED, PF_KEY_OF_CO = (1 << n for n in range(7))
"""PF_KEYED: one of its two owners published it while there were two; PF_KEY_OF_CO: it was the earlier of them."""
# layer flags
LF_INTRUDER, LF_TAINT, LF_FOREIGN_ORIGIN, LF_BLANK, LF_UNKNOWN, LF_ZEROED, LF_GUEST = (1 << n for n in range(7))
"""LF_ZEROED: a scrub by the request that holds the page, which nobody else can read as content. LF_GUEST: written by
one who is attached to the page, behind what it had been attached for; not what the key stands for, unless it, or
nobody by name, publishes the page again."""

# facts
(
    X_UNWRITTEN,
    X_FOREIGN,
    X_NOT_READY,
    X_TAINTED,
    X_SHARED,
    X_UNKNOWN,
    X_UNCOVERED,
    X_LATE_READ,
    X_LATE_WRITE,
    X_DOUBLE_WRITE,
    X_DOUBLE_ALLOC,
    X_DOUBLE_FREE,
    X_RESERVED_ALLOC,
    X_STRAY_WRITE,
    X_STEP_FREE,
    X_STEP_REALLOC,
    X_FALSE_DONE,
    X_POSITION,
    X_ORPHAN,
    X_TIMEOUT_FREE,
    X_OPEN_READ_HIT,
    X_ACROSS,
    X_SESSION,
) = range(23)
