"""Runs the commands of docs/parts/investigation.md on a store of the incident, and writes what they print beside them.

python docs/investigate.py STORE            write; then run docs/generate.py
python docs/investigate.py STORE --check    only say whether the page is what they print
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import shlex
import sys
import tempfile
from pathlib import Path

from kvwitness.audit.cli.app import run

PART = Path(__file__).parent / "parts" / "investigation.md"
_BLOCK = re.compile(r"```console\n(.*?)```", re.DOTALL)


def printed(command: str) -> str:
    """What a command prints, remarks included; the rest of a long answer is a line of dots."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        run(shlex.split(command)[1:])
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    said = err.getvalue()
    if "only the first" in said:
        lines.append("...")
    elif said:
        lines += said.splitlines()
    return "\n".join(lines)


def rewritten(text: str) -> str:
    """The page with the output of every command in it."""

    def block(match: re.Match[str]) -> str:
        commands = [line for line in match[1].splitlines() if line.startswith("$ ")]
        return "```console\n" + "".join(f"{c}\n{printed(c.removeprefix('$ '))}\n" for c in commands) + "```"

    return _BLOCK.sub(block, text)


def main() -> int:
    """Write, or check; status 1 when a check finds another output."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("store", type=Path, help="a store of the incident, audited")
    parser.add_argument("--check", action="store_true", help="write nothing; fail when the page prints something else")
    options = parser.parse_args()
    os.environ["KVWITNESS_STORE"] = str(options.store.resolve())
    text = PART.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as work, contextlib.chdir(work):
        new = rewritten(text)
    if not options.check:
        PART.write_text(new, encoding="utf-8")
    return 1 if options.check and new != text else 0


if __name__ == "__main__":
    sys.exit(main())
