"""`kvwitness attach`: what the tracer would see of the engine that is installed here."""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import sys
from typing import Annotated, Any

import typer

from kvwitness.audit.trace.ring import DIRECTORY_VARIABLE
from kvwitness.gpu_tracer import devices_cli, engines, memory_cli
from kvwitness.gpu_tracer.engines.base import Engine, survey

app = typer.Typer(no_args_is_help=True, help="Attach the tracer to an inference engine.")

app.command("devices")(devices_cli.devices)
app.command("memory")(memory_cli.memory)

_INCOMPLETE, _NONE = 1, 2


@app.callback()
def attach() -> None:
    """Attach the tracer to an inference engine."""


@app.command("check")
def check(
    engine: Annotated[str | None, typer.Argument(help="Name of an engine (default: all that are installed).")] = None,
    format: Annotated[str, typer.Option(help="text or json.")] = "text",
) -> None:
    """Say what would be recorded of the engine installed in this environment, and what would be missing.

    Imports the engine, changes nothing. Status 0 when all hooks attach, 1 when some do not, 2 when there is no engine
    that is known.
    """
    found = [report(one) for one in known() if engine in (None, one.name) and one.installed()]
    if format == "json":
        print(json.dumps(found, indent=2))
    else:
        for one in found:
            print("\n".join(told(one)))
    if not found:
        names = ", ".join(one.name for one in known())
        print(f"No engine that the tracer knows is installed here ({names}).", file=sys.stderr)
        raise typer.Exit(_NONE)
    if any(one["missing"] for one in found):
        raise typer.Exit(_INCOMPLETE)


def known() -> list[Engine]:
    """All adapters, by name."""
    modules = (importlib.import_module(f"{engines.__name__}.{m.name}") for m in pkgutil.iter_modules(engines.__path__))
    found = (getattr(module, "ENGINE", None) for module in modules)
    return sorted((one for one in found if isinstance(one, Engine)), key=lambda one: one.name)


def report(engine: Engine) -> dict[str, Any]:
    """What would become of the hooks of an engine that is installed, as plain values."""
    distribution, version = engine.installed() or ("", "")
    outcome = survey(engine.hooks)
    return {
        "engine": engine.name,
        "distribution": distribution,
        "version": version,
        "tested": version in engine.tested,
        "tested_versions": list(engine.tested),
        "how": engine.how,
        "recording": bool(os.environ.get(DIRECTORY_VARIABLE)),
        "attached": [hook.name for hook in outcome.attached],
        "missing": [
            {
                "hook": one.hook.name,
                "reason": one.reason,
                "kinds": list(one.hook.kinds),
                "unproven": list(one.hook.unproven),
            }
            for one in outcome.missing
            if not one.hook.optional
        ],
        "absent": [one.hook.name for one in outcome.missing if one.hook.optional],
        "events_missing": list(outcome.unseen),
        "unproven": list(outcome.unproven),
        "limits": list(engine.limits),
    }


def told(report: dict[str, Any]) -> list[str]:
    """The report as lines for people."""
    tested = "tested" if report["tested"] else f"not among the tested versions ({', '.join(report['tested_versions'])})"
    total = len(report["attached"]) + len(report["missing"])
    lines = [
        f"{report['engine']}: {report['distribution']} {report['version']}, {tested}",
        f"  hooks      {len(report['attached'])} of {total} attach",
    ]
    lines += [f"             {one['hook']}: {one['reason']}" for one in report["missing"]]
    if report["absent"]:
        lines.append(f"  not needed {', '.join(report['absent'])}: this version does not have them")
    lines.append(f"  missing    {', '.join(report['events_missing']) or 'no events'}")
    lines.append(f"  unproven   {', '.join(report['unproven']) or 'no verdicts'}")
    where = os.environ.get(DIRECTORY_VARIABLE)
    lines.append(f"  recording  {f'into {where}' if where else f'off: {DIRECTORY_VARIABLE} is not set'}")
    lines.append(f"  attach     {report['how']}")
    lines += [f"  limit      {limit}" for limit in report["limits"]]
    return lines
