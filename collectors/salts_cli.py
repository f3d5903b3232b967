"""`kvwitness salt-hash`: what a cache salt is called in a store, for `kvwitness collect --salt-map`."""

from __future__ import annotations

import sys

import typer

from kvwitness.audit.cli.options import FormatOption, OutputOption
from kvwitness.audit.cli.output import Printer
from kvwitness.audit.trace.pseudonym import keyed_hash
from kvwitness.collectors.salts import lasting_salt_key

app = typer.Typer(add_completion=False)


@app.command("salt-hash")
def salt_hash(format: FormatOption = None, output: OutputOption = None) -> None:
    """Hash cache salts, one per line of standard input, under the key that collectors and tracers use.

    The salts are not repeated: the hashes come in their order. Status 2 where no lasting key is set.
    """
    printer = Printer.choose(format, output)
    key = lasting_salt_key()
    salts = [line.rstrip(b"\r\n") for line in sys.stdin.buffer]
    printer.objects(
        [
            {"line": number, "salt_hmac": keyed_hash(key, "salt", salt)}
            for number, salt in enumerate(salts, start=1)
            if salt
        ]
    )
