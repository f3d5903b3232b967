"""The views of `store.duckdb`: what SQL may rely on.

They are stable. A view or column that has been published keeps its name, type and meaning; views and columns may be
added. A breaking change raises `VERSION`, and the view as it was stays for one release in `RETIRED`, published as
`<name>_v<version before>`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import duckdb

from kvwitness.audit.store import sql
from kvwitness.audit.store.views import engines, pages, requests
from kvwitness.audit.store.views.alerts import OF_ALERTS
from kvwitness.audit.store.views.model import Macro, ResultView, View
from kvwitness.audit.store.views.results import RESULTS

VERSION = 1
"""Version of the views, in the table `manifest` as `views_version`."""

DERIVED: tuple[View, ...] = (*requests.VIEWS, *engines.VIEWS, *pages.VIEWS)
"""Views that are computed from `events` and from the results of the newest audit."""

MACROS: tuple[Macro, ...] = (requests.REQUESTS_OF, requests.TRANSFERS_OF)
"""Views with parameters."""

RETIRED: tuple[View, ...] = ()
"""Views as they were before the last breaking change, under their old name with `_v` and the version of then."""

__all__ = [
    "DERIVED",
    "MACROS",
    "OF_ALERTS",
    "RESULTS",
    "RETIRED",
    "VERSION",
    "Macro",
    "ResultView",
    "View",
    "comment",
    "create",
    "create_macro",
]


def create(
    con: duckdb.DuckDBPyConnection, views: Iterable[View] = (*DERIVED, *RETIRED), macros: Iterable[Macro] = MACROS
) -> None:
    """Create the derived views in the selected database, which has `events` and the results already."""
    for view in views:
        con.execute(f"CREATE VIEW {sql.name(view.name)} AS {view.query}")
        comment(con, view.name, view.about, view.comments())
    for macro in macros:
        create_macro(con, macro)


def create_macro(con: duckdb.DuckDBPyConnection, macro: Macro) -> None:
    """Create a view with parameters."""
    name = sql.name(macro.name)
    con.execute(f"CREATE MACRO {name}({', '.join(macro.parameters)}) AS TABLE {macro.query}")
    con.execute(f"COMMENT ON MACRO TABLE {name} IS {sql.text(macro.about)}")


def comment(
    con: duckdb.DuckDBPyConnection, name: str, about: str, columns: Mapping[str, str], *, kind: str = "VIEW"
) -> None:
    """Say what a view (or, by `kind`, a TABLE) and its columns mean, where the shell shows it."""
    con.execute("; ".join(_comments(name, about, columns, kind)))


def _comments(name: str, about: str, columns: Mapping[str, str], kind: str) -> Iterator[str]:
    yield f"COMMENT ON {kind} {sql.name(name)} IS {sql.text(about)}"
    for column, meaning in columns.items():
        yield f"COMMENT ON COLUMN {sql.name(name)}.{sql.name(column)} IS {sql.text(meaning)}"
