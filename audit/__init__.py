"""What is known, and what it proves: vocabulary, store, rules, incidents, command line.

`query(name, **parameters)` answers an incident query: see `kvwitness.audit.asking.query`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvwitness.audit.asking import query as query

__all__ = ["query"]


def __getattr__(name: str) -> Any:
    # On demand: whoever imports the vocabulary alone must not wait for a query engine, or even have one.
    if name == "query":
        from kvwitness.audit.asking import query

        return query
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
