"""The page on SQL: every view with its columns, every query with its header; written by `docs/generate.py`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kvwitness.audit.queries import Query, queries
from kvwitness.audit.store import views
from kvwitness.audit.store.catalog import EVENTS_ABOUT

_INTRODUCTION = f"""\
# Asking the store in SQL

<!-- Written by `python docs/generate.py` from audit/store/views and audit/queries; edit those, or the part on the
     incident in docs/parts, not this page. -->

`store.duckdb` in a store's directory holds views and queries, and nothing else. Any DuckDB from 1.4 on reads it while
collectors go on writing:

| with | how |
|---|---|
| the command line | `kvwitness sql over_limit_successes -p since=2026-09-01`, `kvwitness sql "SELECT ..."` |
| its shell | `kvwitness sql`: completion by Tab, history, `.help`; Ctrl-C stops a query |
| the DuckDB shell | `duckdb -readonly DIR/store.duckdb`, then `FROM over_limit_successes(since := '2026-09-01')` |
| any client of DuckDB | `ATTACH 'DIR/store.duckdb' AS store (READ_ONLY); USE store;`, then the same |
| the files of `audit/queries` | `SET VARIABLE since = '2026-09-01'`, then the text of `over_limit_successes.sql` |
| Python | `kvwitness.audit.query("over_limit_successes", store="DIR", since="2026-09-01")`, a Polars frame |

Everything that came in is seen at the next query. What is judged is as of the newest audit: `audit_run` says when that
was, `coverage` how many events came in since, and the command line says so beside such an answer. Before the first
audit, views of results **fail** when they are read; an empty answer would look like "nothing found". Views of alerts
(`alerts`, and those that begin with `alert_`) are as of the newest check, which their column `checked_ts` names. Before
the first check they fail as well, and so they do where one was killed while it changed something. Each of them shows
one moment; two in one query may be a moment apart. Times are UTC. Windows hold `since` and not `until`.
`kvwitness sql`, its shell, Python and the dashboard say what is wrong with a parameter, also where the answer would be
empty: a name that no event has, a window that can hold nothing. To a bare DuckDB these are answers without rows, or
with counts of 0.

`kvwitness sql --export DIR` writes a window as one DuckDB file that stands alone, with the same views and queries:
`-p since=... -p until=...`, and `--pseudonymise` for tenants under pseudonyms of a key that nobody keeps
(`--pseudonym-key FILE`: of this key), also in texts that name one; `extra` and `ns`, where a source may have put
anything, are left out then. Request ids, pools, models, adapters and hashed salts stay as they are.

## What it costs

`python benchmarks/queries.py` asks each query on a generated store. On one of 41 million page events in 5.3 million
events, of 407,000 requests, `page_touches` took 1.1 s of CPU time (of all threads), `count_disagreements`, `near_limit`
and `short_transfers` 0.5 to 0.9 s, the others less than that, on a machine with much else to do. A query that reads
most of the store, whatever is asked, says so before it begins, and the command line and the dashboard show how far it
is. For a few requests ask `requests_of(ids)` and `transfers_of(ids)`: they read the stretches that hold them.

## What is stable

Views, their columns and the queries of version {views.VERSION} (`SELECT value FROM manifest WHERE key =
'views_version'`) keep their names, types and meanings; further ones may be added. A breaking change raises the version,
and the view as it was stays for one release under its name with `_v` and the number before. A store that was published
by an older kvwitness gets the views of a newer one as soon as that opens it. Select columns by name.
"""


def reference(investigation: str) -> str:
    """The whole page; `investigation` is the part on a worked incident, as Markdown."""
    parts = [_INTRODUCTION, *_queries(queries().values()), investigation.strip() + "\n", *_views()]
    return "\n".join(parts)


def _queries(found: Iterable[Query]) -> Iterator[str]:
    listed = list(found)
    rows = "".join(f"| [`{q.name}`](#{q.name}) | {q.question} |\n" for q in listed)
    yield f"## The incident queries\n\n| query | question |\n|---|---|\n{rows}"
    for query in listed:
        yield _query(query)


def _query(query: Query) -> str:
    takes = "".join(
        f"| `{p.name}` | {p.type} | {'must be given' if p.default is None else f'`{p.default}`'} | {p.meaning} |\n"
        for p in query.parameters
    )
    table = f"| parameter | type | default | meaning |\n|---|---|---|---|\n{takes}"
    cost = "\nReads most of the store, whatever is asked.\n" if query.scan else ""
    return (
        f"### {query.name}\n\n**{query.question}**\n\n{table}{cost}\n"
        f"*It means:* {query.means}\n\n*It cannot say:* {query.cannot_say}\n"
    )


def _views() -> Iterator[str]:
    yield (
        "## The views\n\n"
        "In the shell: `.describe VIEW`; anywhere: `SELECT * FROM duckdb_columns()`, whose `comment` says the same.\n"
    )
    yield _view(
        "events", EVENTS_ABOUT[0], {"...": "All columns of the [trace format](trace-format.md#columns)."} | _added()
    )
    documented: list[views.View | views.ResultView] = [*views.DERIVED, *views.RESULTS, *views.OF_ALERTS]
    for view in sorted(documented, key=lambda view: view.name):
        yield _view(view.name, view.about, view.comments())
    for macro in views.MACROS:
        yield f"### {macro.name}({', '.join(macro.parameters)})\n\n{macro.about}\n"


def _added() -> dict[str, str]:
    """What `events` has beyond the trace format."""
    return {name: EVENTS_ABOUT[1][name] for name in ("ts", "ingest", "ingest_row", "segment")}


def _view(name: str, about: str, columns: dict[str, str]) -> str:
    rows = "".join(f"| `{column}` | {meaning} |\n" for column, meaning in columns.items())
    return f"### {name}\n\n{about}\n\n| column | meaning |\n|---|---|\n{rows}"
