"""The block tables of vLLM's worker, which are what its kernels read, held against what the scheduler planned.

The worker builds its tables from the plans that it is sent. Beside it a second table is built here from the same plans,
and a request's row is held against it whenever the row has grown, and now and then besides. A row that differs travels
back with the step's output, and is recorded as what it is: a read of other pages than those that were planned.
"""

from __future__ import annotations

from typing import Any

ROWS = "kvwitness_rows"
"""Attribute of a step's output: request id -> the pages in its row, where they are not the planned ones."""
_MIRROR = "_kvwitness_mirror"
_EVERY = 64
"""A row that does not grow is looked at once in so many steps."""


class Mirror:
    """The tables of one worker as the plans say, and what was found to differ."""

    def __init__(self) -> None:
        self.tables: dict[str, list[int]] = {}
        self._grown: set[str] = set()
        self._step = 0

    def follow(self, plan: Any) -> None:
        """Take in a plan, as the worker does."""
        for rid in plan.finished_req_ids:
            self.tables.pop(rid, None)
        for new in plan.scheduled_new_reqs:
            self.tables[new.req_id] = list(new.block_ids[0])
            self._grown.add(new.req_id)
        cached = plan.scheduled_cached_reqs
        if not cached.resumed_req_ids and cached.new_block_ids.count(None) == len(cached.new_block_ids):
            return  # nearly always: nobody's table has grown
        for rid, blocks in zip(cached.req_ids, cached.new_block_ids, strict=True):
            if rid in cached.resumed_req_ids:
                self.tables[rid] = list(blocks[0]) if blocks is not None else []
            elif blocks is not None and rid in self.tables:
                self.tables[rid] += blocks[0]
            else:
                continue
            self._grown.add(rid)

    def differing(self, runner: Any, plan: Any) -> dict[str, list[int]]:
        """The rows that differ, of those that a step has just used and that are looked at this time."""
        self._step += 1
        if not self._step % _EVERY:
            looked = plan.num_scheduled_tokens.keys()
        elif self._grown:
            looked = self._grown & plan.num_scheduled_tokens.keys()
        else:
            return {}
        self._grown = set()
        if not looked:
            return {}
        batch = runner.input_batch
        (table,) = batch.block_table.block_tables
        if int(getattr(table, "blocks_per_kv_block", 1) or 1) != 1:
            return {}  # its rows have other units than plans
        rows, out = table.get_numpy_array(), {}
        for rid in looked:
            planned, at = self.tables.get(rid), batch.req_id_to_index.get(rid)
            if planned and at is not None and (row := rows[at, : len(planned)].tolist()) != planned:
                out[rid] = row
        return out


def mirror_of(runner: Any) -> Mirror | None:
    """The mirror of a worker; None where it has several tables, or none that is known."""
    known = runner.__dict__.get(_MIRROR, runner)
    if known is runner:
        tables = getattr(getattr(runner.input_batch, "block_table", None), "block_tables", ())
        known = runner.__dict__[_MIRROR] = Mirror() if len(tables) == 1 else None
    return known if isinstance(known, Mirror) else None
