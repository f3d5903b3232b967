"""The rule catalogue: every module beside this one that exports `RULE` is a rule.

A new rule is one new file; nothing lists it. Names that begin with an underscore are helpers.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

from kvwitness.audit.errors import KvwitnessError
from kvwitness.audit.rules.model import Rule

RULES: Mapping[str, Rule]
"""Rule id -> rule, in alphabetical order. Found at first use, so that `model` can be imported on its own."""


@cache
def _discover() -> Mapping[str, Rule]:
    found: dict[str, Rule] = {}
    for module in pkgutil.iter_modules(__path__):
        if module.name.startswith("_") or module.name == "model":
            continue
        rule = getattr(importlib.import_module(f"{__name__}.{module.name}"), "RULE", None)
        if not isinstance(rule, Rule):
            raise KvwitnessError(
                f"rule file {module.name}.py exports no RULE of type Rule",
                "Define RULE in it, or begin its name with an underscore if it is a helper.",
            )
        if rule.id != module.name.replace("_", "-"):
            raise KvwitnessError(
                f"rule file {module.name}.py defines the rule {rule.id!r}",
                "Name the file after the rule's id, with underscores for hyphens.",
            )
        found[rule.id] = rule
    return MappingProxyType(dict(sorted(found.items())))


def __getattr__(name: str) -> Mapping[str, Rule]:
    if name == "RULES":
        return _discover()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def get(rule_id: str) -> Rule:
    """The rule of that id; raises `KvwitnessError` that names the known ids when there is none."""
    known = _discover()
    rule = known.get(rule_id)
    if rule is None:
        raise KvwitnessError(f"there is no rule {rule_id!r}", f"Known rules: {', '.join(known)}.")
    return rule
