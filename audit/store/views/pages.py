"""Views of pages: what touched them, their generations, what was read and shared."""

from __future__ import annotations

from kvwitness.audit.store.views.model import LIFE, LIFE_COMMENT, TS_COMMENT, View

_LIST_COLUMNS = (
    "time_ns", "ts", "event", "source", "seq", "request", "incarnation", "tenant", "pool", "pages", "page_count",
    "to_pool", "to_pages", "tok_first", "tok_end", "gen", "op", "phase", "holder", "reason", "to", "path", "key",
    "digest", "tier", "step", "transfer", "cause",
)  # fmt: skip
_LIST_MEANING = {
    "ts": TS_COMMENT,
    "incarnation": LIFE_COMMENT,
    "page_count": "Length of `pages`. [pages]",
}
_LIST_SQL = {"incarnation": f"{LIFE} AS incarnation", "page_count": "len(pages) AS page_count", "to": '"to"'}

PAGE_EVENT_LISTS = View(
    "page_event_lists",
    "One row per page event, with its page list as recorded. Order by (source, seq), never by time.",
    f"SELECT {', '.join(_LIST_SQL.get(name, name) for name in _LIST_COLUMNS)}\n"
    "FROM events WHERE event >= 'page.' AND event < 'page/'",
    {name: _LIST_MEANING.get(name, "") for name in _LIST_COLUMNS},
)

_PAGE_EVENT_COLUMNS = (
    "time_ns", "event", "source", "seq", "request", "incarnation", "tenant", "pool", "gen", "op", "phase",
    "holder", "reason", "step", "transfer", "ingest", "ingest_row",
)  # fmt: skip

PAGE_EVENTS = View(
    "page_events",
    "One row for each page that an event touches. For the life of one page ask page_touches, which is quicker.",
    f"SELECT {', '.join(_PAGE_EVENT_COLUMNS)}, ts, unnest(pages) AS page, unnest(range(len(pages))) AS position\n"
    "FROM events WHERE len(pages) > 0",
    {
        **dict.fromkeys(_PAGE_EVENT_COLUMNS, ""),
        "ts": TS_COMMENT,
        "page": "Id of the page in `pool`.",
        "position": "Place of the page in the event's list, from 0.",
    },
)

_ROLES = (
    ("page", "pool", "pages"),
    ("target", "coalesce(to_pool, pool)", "to_pages"),
    ("source", "src_pool", "src_pages"),
    ("destination", "dst_pool", "dst_pages"),
)
_HISTORY = "time_ns, ts, source, seq, event, op, phase, request, incarnation, tenant, holder, reason, transfer, gen"


def history(where: str = "TRUE") -> str:
    """SQL of page_history over the events for which `where` holds."""
    branches = "\n  UNION ALL\n".join(
        f"  SELECT {pool} AS pool, unnest({pages}) AS page, '{role}' AS role, {_HISTORY}\n"
        f"  FROM events WHERE len({pages}) > 0 AND ({where})"
        for role, pool, pages in _ROLES
    )
    return f"""\
WITH touched AS (
{branches}
), placed AS (
  SELECT *, max(time_ns) OVER (PARTITION BY pool, page, source ORDER BY seq NULLS FIRST, time_ns) AS at_ns
  FROM touched
), counted AS (
  SELECT *, (count(*) FILTER (
      (event = 'page.alloc' AND role = 'page') OR (event = 'page.move' AND role = 'target')
    ) OVER (PARTITION BY pool, page ORDER BY at_ns, source, seq ROWS UNBOUNDED PRECEDING))::BIGINT AS counted
  FROM placed
)
SELECT pool, page, coalesce(CASE WHEN role = 'page' THEN gen END, counted) AS generation, time_ns, ts, at_ns,
  source, seq, event, op, phase, role, request, {LIFE} AS incarnation, tenant, holder, reason, transfer
FROM counted"""


PAGE_HISTORY = View(
    "page_history",
    "One row for each page and event that names it, also as the target of a copy or an end of a transfer, with the "
    "page's generation. Explodes every page list: for one page ask page_touches.",
    history(),
    {
        "pool": "",
        "page": "Id of the page in `pool`.",
        "generation": "How often the page had been allocated: as the source said, else as counted from this record.",
        "time_ns": "",
        "ts": TS_COMMENT,
        "at_ns": "Time to sort by: time_ns, never falling within a source. [ns since the Unix epoch]",
        "source": "",
        "seq": "",
        "event": "",
        "op": "",
        "phase": "",
        "role": "What the page is to the event: `page`, `target` (of a copy or move), `source` or `destination` (of a "
        "transfer).",
        "request": "",
        "incarnation": LIFE_COMMENT,
        "tenant": "",
        "holder": "",
        "reason": "",
        "transfer": "",
    },
)

READS = View(
    "reads",
    "One row per page read, with what the newest audit made of it. Needs an audit; reads that came in since are null "
    "in soundness, which is not sound.",
    f"""\
WITH faults AS (
  SELECT request, pool, time_ns, source, seq, line, list_sort(list(DISTINCT soundness)) AS faults,
    max(page_count) AS unsound_pages,
    arg_min(soundness, list_position(
      ['foreign', 'unwritten', 'not_ready', 'open_read_hit', 'late_read', 'tainted', 'uncovered', 'unknown'], soundness
    )) AS worst
  FROM unsound_reads GROUP BY ALL
)
SELECT e.time_ns, e.ts, e.source, e.seq, e.request, {LIFE.replace("incarnation", "e.incarnation")} AS incarnation,
  e.tenant, e.pool, e.pages, len(e.pages) AS page_count, e.tok_first, e.tok_end, e.op, e.phase, e.step, e.transfer,
  CASE WHEN f.worst IS NOT NULL THEN f.worst WHEN e.ingest_row <= m.last_row THEN 'sound' END AS soundness,
  coalesce(f.faults, []) AS faults, coalesce(f.unsound_pages, 0) AS unsound_pages
FROM events AS e
LEFT JOIN audit_marks AS m ON m.ingest = e.ingest
LEFT JOIN faults AS f ON f.request = e.request AND f.pool = e.pool AND f.time_ns = e.time_ns
  AND f.source = coalesce(e.source, '') AND f.seq IS NOT DISTINCT FROM e.seq AND f.line IS NOT DISTINCT FROM e.line
WHERE e.event = 'page.read'""",
    {
        "time_ns": "",
        "ts": TS_COMMENT,
        "source": "",
        "seq": "",
        "request": "",
        "incarnation": LIFE_COMMENT,
        "tenant": "",
        "pool": "",
        "pages": "",
        "page_count": "Length of `pages`. [pages]",
        "tok_first": "",
        "tok_end": "",
        "op": "",
        "phase": "",
        "step": "",
        "transfer": "",
        "soundness": "`sound`: its own content or an admitted share; else the gravest fault of the read (see faults); "
        "null: not judged yet.",
        "faults": "All faults: `foreign` (another's content, unadmitted), `unwritten`, `not_ready` (being written), "
        "`open_read_hit` and `late_read` (overwritten or released meanwhile), `tainted` (computed from an unsound "
        "read), `uncovered` (past what was transferred), `unknown` (older than the record).",
        "unsound_pages": "Pages that the gravest counts concern. [pages]",
    },
)

SHARES = View(
    "shares",
    "One row per look-up in which a request attached to pages that exist already, with the latest publication of the "
    "key in that pool.",
    f"""\
WITH published AS (
  SELECT pool, key, time_ns, request, {LIFE} AS incarnation, tenant, digest FROM events
  WHERE event = 'page.publish' AND key IS NOT NULL
), attached AS (
  SELECT * FROM events WHERE event = 'page.share'
)
SELECT s.time_ns, s.ts, s.source, s.seq, s.request, {LIFE.replace("incarnation", "s.incarnation")} AS incarnation,
  s.tenant, s.pool, s.pages, len(s.pages) AS page_count, s.key, s.tier, s.tok_first, s.tok_end,
  p.time_ns AS published_ns, make_timestamp_ns(p.time_ns) AS published_ts, p.request AS publisher,
  p.incarnation AS publisher_incarnation, p.tenant AS publisher_tenant,
  coalesce(s.digest <> p.digest, false) AS digest_differs
FROM attached AS s ASOF LEFT JOIN published AS p
  ON p.pool = s.pool AND p.key = s.key AND p.time_ns <= s.time_ns""",
    {
        "time_ns": "",
        "ts": TS_COMMENT,
        "source": "",
        "seq": "",
        "request": "",
        "incarnation": LIFE_COMMENT,
        "tenant": "Tenant that the event names; null where it names none (see requests).",
        "pool": "",
        "pages": "",
        "page_count": "Length of `pages`. [pages]",
        "key": "",
        "tier": "",
        "tok_first": "",
        "tok_end": "",
        "published_ns": "When the key was published last before; null: no publication is on record. "
        "[ns since the Unix epoch]",
        "published_ts": "published_ns as a timestamp (UTC).",
        "publisher": "Request that published it.",
        "publisher_incarnation": "Which life of the publisher's id; 0 is the first.",
        "publisher_tenant": "Tenant that the publication names; null where it names none (see requests).",
        "digest_differs": "Whether what was asked for and what was published have different digests.",
    },
)

VIEWS = (PAGE_EVENT_LISTS, PAGE_EVENTS, PAGE_HISTORY, READS, SHARES)
