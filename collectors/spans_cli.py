"""`kvwitness spans`: send the requests of a store as OpenTelemetry spans to a backend."""

from __future__ import annotations

from typing import Annotated

import typer

from kvwitness.audit.cli.options import DEFAULT_STORE, FormatOption, OutputOption, QuietOption, StoreOption
from kvwitness.audit.cli.output import Printer
from kvwitness.audit.cli.progress import progress
from kvwitness.audit.cli.stores import open_store
from kvwitness.audit.errors import KvwitnessError

app = typer.Typer(add_completion=False)


@app.command("spans")
def spans(
    to: Annotated[str, typer.Argument(metavar="URL", help="OTLP/HTTP endpoint, such as http://127.0.0.1:4318.")],
    since: Annotated[str | None, typer.Option(help="Requests received from then on, UTC.")] = None,
    until: Annotated[str | None, typer.Option(help="Requests received before then, UTC.")] = None,
    header: Annotated[list[str] | None, typer.Option(help="NAME=VALUE to send along, such as a token.")] = None,
    store: StoreOption = DEFAULT_STORE,
    format: FormatOption = None,
    output: OutputOption = None,
    quiet: QuietOption = False,
) -> None:
    """Send every request of the store as a span, with its verdict: for the backend that you have already.

    The ids follow from the requests: sending again sends the same spans.
    """
    try:
        from kvwitness.collectors.otlp.spans_out import requests_of, send
    except ImportError as error:
        raise KvwitnessError(
            f"`kvwitness spans` needs more than is installed here: {error}.",
            "Install the optional part: pip install 'kvwitness[otlp]'.",
        ) from None
    if not to.startswith(("http://", "https://")):
        raise KvwitnessError(f"{to!r} is not the URL of an OTLP/HTTP endpoint.", "Such as http://127.0.0.1:4318.")
    headers = dict(_header(text) for text in header or [])
    printer = Printer.choose(format, output)
    opened = open_store(store)
    with progress(f"sending to {to}", quiet=quiet) as report:
        rows = requests_of(opened, since, until)
        sent = send(rows, opened.info()["store_id"], to, headers, lambda count: report(count, None))
    printer.record({"spans": sent.spans, "rejected": sent.rejected, "reason": sent.reason})


def _header(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise KvwitnessError("--header takes NAME=VALUE.")
    return name, value
