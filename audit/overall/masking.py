"""Tenants under pseudonyms for whoever may see what happened and not to whom."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace

import polars as pl
import pyarrow as pa

from kvwitness.audit.store import Pseudonyms
from kvwitness.audit.telling.answer import Answer

TENANTS = frozenset({"tenant", "other_tenant", "other_tenants", "tenants", "reader", "readers", "publisher_tenant"})
"""Columns that hold tenants."""
TEXTS = frozenset(
    {"why", "missing", "title", "reason", "about", "text", "holder", "other_holder", "by", "finish_reason"}
)
"""Columns whose sentences or words may name one."""
_FREE = ["ns", "extra"]
"""Columns of events in which a source may have put anything."""


class Mask:
    """Puts pseudonyms in the place of tenants: in columns of them, and in sentences that name one of `names`."""

    def __init__(self, pseudonyms: Pseudonyms, names: Iterable[str]) -> None:
        self._of = pseudonyms.of
        longest_first = sorted(names, key=len, reverse=True)
        words = "|".join(map(re.escape, longest_first))
        self._named = re.compile(rf"(?<![\w-])(?:{words})(?![\w-])") if words else None

    @classmethod
    def for_answer(cls, pseudonyms: Pseudonyms, answer: Answer) -> Mask:
        """One that knows all tenants of an answer."""
        columns = [answer.requests["tenant"], answer.findings["tenant"], answer.findings["other_tenants"].explode()]
        return cls(pseudonyms, pl.concat(columns).drop_nulls().unique().to_list())

    def text(self, text: str) -> str:
        """A sentence without the tenants that it names."""
        return text if self._named is None else self._named.sub(lambda match: self._of(match[0]), text)

    def table(self, frame: pl.DataFrame) -> pl.DataFrame:
        """A table with its columns of tenants and its sentences replaced."""
        changed = [self._replaced(frame[name]) for name in frame.columns if name in TENANTS | TEXTS]
        return frame.with_columns(changed)

    def _replaced(self, column: pl.Series) -> pl.Series:
        change = self.text if column.name in TEXTS else self._of
        values = [_mapped(value, change) for value in column.to_list()]
        return pl.Series(column.name, values, dtype=column.dtype)

    def events(self, events: pl.LazyFrame) -> pl.LazyFrame:
        """Events with their tenants replaced, and without what a source may have put into free columns."""
        hidden = pl.col("tenant").map_batches(self._names, return_dtype=pl.String)
        return events.with_columns(hidden, *[pl.lit(None, pl.String).alias(name) for name in _FREE])

    def _names(self, column: pl.Series) -> pl.Series:
        known = {name: self._of(name) for name in column.drop_nulls().unique().to_list()}
        return column.replace(known) if known else column

    def batch(self, events: pa.Table) -> pa.Table:
        """Events as `events` gives them, and without the tenants that their texts name; the types stay."""
        for number, column in enumerate(events.schema):
            if column.name in _FREE:
                events = events.set_column(number, column, pa.nulls(len(events), column.type))
            elif column.name in TENANTS | TEXTS:
                change = self.text if column.name in TEXTS else self._of
                coded = events.column(number).combine_chunks().dictionary_encode()
                words = pa.array([change(word) for word in coded.dictionary.to_pylist()], column.type)
                events = events.set_column(number, column, words.take(coded.indices))
        return events

    def answer(self, answer: Answer) -> Answer:
        """An answer in which no tenant stands under its name."""
        return replace(
            answer,
            events=self.events(answer.events),
            findings=self.table(answer.findings),
            incidents=self.table(answer.incidents),
            requests=self.table(answer.requests),
        )


def _mapped(value: object, change: Callable[[str], str]) -> object:
    if isinstance(value, list):
        return [None if item is None else change(str(item)) for item in value]
    return None if value is None else change(str(value))
