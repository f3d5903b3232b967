"""From one version of the columns to the next.

When the columns change: raise SCHEMA_VERSION, and register here, under the version that it starts from, a
function that turns a table of that version into one of the next. A column that is only added needs no more
than the identity: absent columns are filled with nulls at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pyarrow as pa

from kvwitness.audit.store.failures import StoreError
from kvwitness.audit.store.schema import SCHEMA_VERSION, STORE_SCHEMA, conform

Migration = Callable[[pa.Table], pa.Table]
MIGRATIONS: dict[int, Migration] = {}
"""version -> function to version + 1."""


def upgrade(table: pa.Table, version: int, migrations: Mapping[int, Migration] | None = None) -> pa.Table:
    """A table of an older (or the current) version in the current STORE_SCHEMA."""
    steps = MIGRATIONS if migrations is None else migrations
    for step in range(version, SCHEMA_VERSION):
        if step not in steps:
            raise StoreError(
                f"There is no way from schema version {step} to {step + 1}.",
                "Use a version of kvwitness that still reads this store, and export it with `kvwitness sql`.",
            )
        table = steps[step](table)
    return conform(table, STORE_SCHEMA)
