"""Names for the columns of the kernel's arrays. Everything is an integer; -1 means "none".

The state of a page fills one 64-byte cache line (`S`), because the replay visits pages in no order and a line is
what one visit costs. What only alloc, free and faults need stands in a second array (`C`).
"""

# --- events: one column per field, E[column, event] ------------------------------------------------------------
KIND, ACTOR, RP, POOL, P_OFF, P_N, TOK0, TOK1, OP, PHASE, TIME, GEN_GIVEN, FLAGS, REF, POOL2, RP2 = range(16)
Q_OFF, Q_N, V_OFF, V_N, TOKENS, SOURCE, KEY, DIGEST = range(16, 24)
N_EVENT_COLUMNS = 24

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
OP_FORWARD, OP_TRANSFER, OP_LOAD, OP_COPY, OP_SCRUB, OP_DUMMY, OP_DECODE, OP_PREFILL, OP_OFFLOAD = range(9)

# phases
PH_WHOLE, PH_BEGIN, PH_END = range(3)

# event flags
F_TIMEOUT, F_WINDOW, F_PREEMPT, F_DUMMY, F_RECORD, F_ANYONE = (1 << n for n in range(6))

# --- page state S[page, 16] int32 ------------------------------------------------------------------------------
GEN, OWNER, SHARERS, NEXT, LO, HI, WRITER, LGEN, LEV, LFLAGS, ORIGIN, RD_LO, RD_HI, STEP, ORD, PFLAGS = range(16)
# page flags
PF_KNOWN, PF_RESERVED, PF_OPEN_WRITE, PF_CO, PF_PUBLISHED = (1 << n for n in range(5))
# layer flags
LF_INTRUDER, LF_TAINT, LF_FOREIGN_ORIGIN, LF_BLANK = (1 << n for n in range(4))

# --- page state, cold part C[page, 8] int32 --------------------------------------------------------------------
OPEN_WRITES, PREVIOUS, CO_OWNER, ALLOC_EV, FREE_EV, FREED_STEP, READ_EV, REPORTED = range(8)

# --- layers under the newest one: L[node, 8] int32 -------------------------------------------------------------
L_LO, L_HI, L_WRITER, L_GEN, L_EV, L_FLAGS, L_ORIGIN, L_NEXT = range(8)

# --- open writes: N[node, 8] int32 -----------------------------------------------------------------------------
N_ACTOR, N_EV, N_GEN, N_LO, N_HI, N_OP, N_NEXT = range(7)

# --- actors: A[actor, 6] int64 ---------------------------------------------------------------------------------
A_TENANT, A_TYPE, A_EXEMPT, A_END, A_TAINTED, A_SPARE = range(6)
T_REQUEST, T_CACHE, T_SESSION, T_SNAPSHOT, T_ENGINE = range(5)
NOBODY = 0  # actor 0: dummy writes, padding, an engine that names no request

# --- request x pool: R[row, 12] int64 --------------------------------------------------------------------------
R_NEXT, R_COVER, R_PENDING0, R_PENDING1, R_BLIND, R_READ_HI, R_SHARE, R_TRANSFER, R_HELD, R_READ, R_REPORTED, R_SOURCE = (
    range(12)
)

# --- pools: P[pool, 12] int64 ----------------------------------------------------------------------------------
B_BASE, B_SIZE, B_TOKENS, B_ORDINALS, B_SHARING, B_SOURCE, B_ALLOCS, B_KNOWN, B_TRACED = range(9)
N_POOL_COLUMNS = 12
SHARE_NONE, SHARE_TENANT, SHARE_GLOBAL = range(3)

# --- shares: SH[share, 12] int64; SP[entry, 3] int32: page, generation (-1 detached), admitted -----------------
SH_ACTOR, SH_POOL, SH_OFF, SH_N, SH_TOK0, SH_TOK1, SH_EV, SH_ORD, SH_NEXT, SH_READ = range(10)

# --- publications: PB[publication, 8] int64; PP[entry, 3] int32: page, generation, pool ---------------------------
PB_EV, PB_POOL, PB_OFF, PB_N, PB_ACTOR, PB_DIGEST, PB_OLDER = range(7)

# --- transfers: TR[record, 20] int64; TP[entry, 4] int32: page, generation, origin, flags ----------------------
(
    TR_ACTOR,
    TR_SRC_POOL,
    TR_S_OFF,
    TR_S_N,
    TR_DST_POOL,
    TR_D_OFF,
    TR_D_N,
    TR_TOK0,
    TR_TOK1,
    TR_EV,
    TR_STATE,
    TR_ID,
    TR_OLDER,
    TR_LEASE,
    TR_READ_DONE,
    TR_D_FIRST,
    TR_RP1,
    TR_RP2,
    TR_S_FIRST,
) = range(19)
N_TRANSFER_COLUMNS = 20
TS_DONE, TS_FAILED, TS_DRAINED = 1, 2, 4

# --- reads that an explicit end may close: RR[record, 10] int64; RPG[entry, 2] int32: page, generation ---------
RR_ACTOR, RR_POOL, RR_EV, RR_OFF, RR_N, RR_TOK0, RR_TOK1, RR_OP, RR_OPEN, RR_OLDER = range(10)

# --- open steps: ST[slot, 4] int64 -----------------------------------------------------------------------------
ST_POOL, ST_STEP, ST_OPEN, ST_EV = range(4)
N_STEPS = 4096

# --- facts: FR[row, 10] int64; FG[entry, 5] int32: row, page, generation, first row, end row -------------------
FR_CODE, FR_EV, FR_A, FR_B, FR_EV2, FR_SINCE, FR_POOL, FR_X, FR_N = range(9)
N_FACT_COLUMNS = 10

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
) = range(21)

# --- counters: CT[64] int64 ------------------------------------------------------------------------------------
(
    CT_FACTS,
    CT_FACTS0,
    CT_PAGES,
    CT_LAYERS,
    CT_LAYER_FREE,
    CT_NODES,
    CT_NODE_FREE,
    CT_SHARES,
    CT_SHARE_PAGES,
    CT_PUBS,
    CT_PUB_PAGES,
    CT_TRANSFERS,
    CT_TRANSFER_PAGES,
    CT_READS,
    CT_READ_PAGES,
    CT_STEPS,
    CT_DEPTH,
    CT_PAGE_EVENTS,
    CT_ORPHAN_NS,
    CT_EV0,
    CT_SCRATCH,
    CT_TIME,
) = range(22)
N_COUNTERS = 64
