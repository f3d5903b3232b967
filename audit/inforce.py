"""The rule parameters that are in force in a store: one set, whoever audits it.

Whoever names parameters (`kvwitness check` and `watch` those of their configuration, `kvwitness audit --config` those
of a file) puts them in force for the audits that follow; who names none judges by what is in force. Every run keeps the
parameters that it judged by beside its findings (`rule_params`), so that these can be had again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import orjson
import polars as pl

from kvwitness.audit.rules import RULES
from kvwitness.audit.store import Store, StoreError
from kvwitness.audit.store.durable import write_atomic
from kvwitness.audit.store.failures import explained

FILE = "rule-params.json"

Overrides = Mapping[str, Mapping[str, float | int | str]]
"""Rule -> parameter -> value, where it is not the rule's default."""


@dataclass(frozen=True)
class Parameters:
    """What rules are judged by."""

    overrides: Overrides = field(default_factory=dict)
    origin: str | None = None
    """Where they were named, such as a file; None: nowhere, all are defaults."""

    def told(self) -> list[str]:
        """`rule.parameter = value`, one for each that is no default."""
        return [
            f"{rule}.{name} = {value}" for rule, own in sorted(self.overrides.items()) for name, value in own.items()
        ]

    def table(self) -> pl.DataFrame:
        """Every parameter of every rule: rule, param, value, default_value, unit, origin (null: the default)."""
        rows = []
        for rule in RULES.values():
            own = self.overrides.get(rule.id, {})
            for param in rule.params:
                origin = self.origin if param.name in own else None
                value = own.get(param.name, param.default)
                rows.append((rule.id, param.name, str(value), str(param.default), param.unit, origin))
        names = ("rule", "param", "value", "default_value", "unit", "origin")
        return pl.DataFrame(rows, schema=dict.fromkeys(names, pl.String), orient="row")


def in_force(store: Store) -> Parameters:
    """The parameters that are in force in a store. Raises `StoreError` where they cannot be read."""
    path = store.path / FILE
    with explained("reading the rule parameters in", path):
        try:
            kept = orjson.loads(path.read_bytes())
            return Parameters(kept["overrides"], kept["origin"])
        except FileNotFoundError:
            return Parameters()
        except (ValueError, KeyError, TypeError) as exc:
            raise StoreError(
                f"The rule parameters in {path} cannot be read: {exc}.",
                "Restore the file, or remove it: the rules' defaults are in force then.",
            ) from exc


def put_in_force(store: Store, wanted: Parameters) -> None:
    """Make these the parameters of the audits that follow. The caller holds the lock of the audit."""
    path: Path = store.path / FILE
    told = {"overrides": {rule: dict(own) for rule, own in wanted.overrides.items()}, "origin": wanted.origin}
    data = orjson.dumps(told, option=orjson.OPT_SORT_KEYS)
    with explained("keeping the rule parameters in", path):
        if not path.exists() or path.read_bytes() != data:
            write_atomic(path, data, store.path / "tmp")
