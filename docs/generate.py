"""Writes the pages of this folder that follow from the code; with `--check` only says which are out of date.

A new generated page is one more entry of `PAGES`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from kvwitness.audit.rule_reference import reference as rule_reference
from kvwitness.audit.rules import RULES
from kvwitness.audit.sql_reference import reference as sql_reference
from kvwitness.audit.trace.reference import render as trace_reference
from kvwitness.gpu_tracer.content.cost import page as content_cost

HERE = Path(__file__).parent

PAGES: dict[str, Callable[[], str]] = {
    "content-cost.md": content_cost,
    "rules.md": lambda: rule_reference(RULES.values()),
    "sql.md": lambda: sql_reference((HERE / "parts" / "investigation.md").read_text(encoding="utf-8")),
    "trace-format.md": trace_reference,
}
"""File name -> what it has to contain."""


def stale() -> list[str]:
    """Names of the pages that differ from what the code says."""
    return [
        name
        for name, text in PAGES.items()
        if not (HERE / name).exists() or (HERE / name).read_text(encoding="utf-8") != text()
    ]


def main() -> int:
    """Write, or check; status 1 when a check finds something out of date."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="write nothing; fail when a page is out of date")
    check = parser.parse_args().check
    outdated = stale()
    for name in outdated:
        if not check:
            (HERE / name).write_text(PAGES[name](), encoding="utf-8")
        print(f"docs/{name} {'is out of date: run python docs/generate.py' if check else 'written'}")
    return 1 if check and outdated else 0


if __name__ == "__main__":
    sys.exit(main())
