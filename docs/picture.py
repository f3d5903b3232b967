"""Draws what a command prints on a terminal: `python docs/picture.py OUT.svg COMMAND ARG...`.

The command runs on a terminal of its own, so that the picture shows what a reader will see.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import shlex
import struct
import subprocess
import sys
import termios
from pathlib import Path

from rich.console import Console
from rich.text import Text

COLUMNS = 118


def printed(command: list[str]) -> str:
    """Standard output of a command on a terminal of `COLUMNS` columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 60, COLUMNS, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS)}
    with subprocess.Popen(command, stdout=theirs, stderr=subprocess.DEVNULL, env=environment):
        os.close(theirs)
        parts = []
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # how Linux says that the other side of a terminal is closed
                break
            if not part:
                break
            parts.append(part)
    os.close(ours)
    return b"".join(parts).decode().replace("\r\n", "\n")


def main() -> None:
    """Run the command, write the picture."""
    target, *command = sys.argv[1:]
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        console = Console(record=True, width=COLUMNS, file=nowhere, force_terminal=True, color_system="truecolor")
        console.print(Text.assemble(("$ ", "bold"), (shlex.join(command), "bold")))
        console.print(Text.from_ansi(printed(command)))
        picture = console.export_svg(title=shlex.join(command[:2]))
    # A picture loads nothing from elsewhere: the reader's own fonts do.
    picture = re.sub(r"@font-face \{.*?\}", "", picture, flags=re.DOTALL)
    picture = picture.replace("Fira Code", "Fira Code, DejaVu Sans Mono, Menlo, Consolas")
    Path(target).write_text(
        "\n".join(line.rstrip() for line in picture.splitlines() if line.strip()) + "\n", encoding="utf-8"
    )


if __name__ == "__main__":
    main()
