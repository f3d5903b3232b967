"""Where alerts go: every module beside this one that exports `SINK` is a kind of sink.

A new one is one new file; nothing lists it. Names that begin with an underscore are helpers. What a sink needs besides
Python it imports when it is made, so that nobody waits for, or needs, what is not used.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache

from kvwitness.audit.alerts.sinks.model import SinkKind
from kvwitness.audit.errors import KvwitnessError


@cache
def sink_kinds() -> Mapping[str, SinkKind]:
    """`type` of configuration -> kind of sink, in alphabetical order."""
    found: dict[str, SinkKind] = {}
    for module in pkgutil.iter_modules(__path__):
        if module.name.startswith("_") or module.name == "model":
            continue
        kind = getattr(importlib.import_module(f"{__name__}.{module.name}"), "SINK", None)
        if not isinstance(kind, SinkKind):
            raise KvwitnessError(
                f"sink file {module.name}.py exports no SINK of type SinkKind",
                "Define SINK in it, or begin its name with an underscore if it is a helper.",
            )
        found[kind.name] = kind
    return dict(sorted(found.items()))
