"""`kvwitness collect`: receive OpenTelemetry, and ask engines for what they say of themselves."""

from __future__ import annotations

import asyncio
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvwitness.audit.cli.options import DEFAULT_STORE, FormatOption, OutputOption, QuietOption, StoreOption
from kvwitness.audit.cli.output import Printer, say
from kvwitness.audit.cli.stores import open_or_create_store
from kvwitness.audit.errors import KvwitnessError
from kvwitness.collectors.salts import lasting_salt_key, salt_key

if TYPE_CHECKING:
    from kvwitness.collectors.otlp.server import Errand, Settings

app = typer.Typer(add_completion=False)

_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
_SIZE = re.compile(r"(\d{1,12})\s*(KiB|MiB|GiB|)", re.IGNORECASE)
_UNITS = {"": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}


@app.command("collect")
def collect(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    http_port: Annotated[int, typer.Option(help="Port for OTLP over HTTP; 0: any free one, -1: none.")] = 4318,
    grpc_port: Annotated[int, typer.Option(help="Port for OTLP over gRPC; 0: any free one, -1: none.")] = 4317,
    senders: Annotated[
        Path | None, typer.Option(help="TOML file: who may send, and for which tenants (docs/collect.md).")
    ] = None,
    anyone: Annotated[bool, typer.Option("--anyone", help="Listen beyond this machine without --senders.")] = False,
    tls_cert: Annotated[Path | None, typer.Option(help="Certificate (PEM) of this receiver.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its key (PEM).")] = None,
    client_ca: Annotated[Path | None, typer.Option(help="Who signs client certificates (PEM); demands one.")] = None,
    tenant_from: Annotated[
        list[str] | None,
        typer.Option(help="Where a tenant is found, in order: attribute:NAME, resource:, baggage:, header:, salt."),
    ] = None,
    salt_map: Annotated[
        Path | None, typer.Option(help="TOML file with [salts]: hash of a cache salt = tenant, for `salt`.")
    ] = None,
    gateway: Annotated[list[str] | None, typer.Option(help="service.name that is a gateway.")] = None,
    engine: Annotated[list[str] | None, typer.Option(help="service.name that is an engine.")] = None,
    scrape: Annotated[
        list[str] | None, typer.Option(metavar="NAME=URL", help="An engine to ask for its limits and pool.")
    ] = None,
    scrape_every: Annotated[float, typer.Option(min=0.1, help="Ask engines this often, in seconds.")] = 15.0,
    kv_events: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=ENDPOINT[,REPLAY]", help="An engine's KV events over ZMQ to follow."),
    ] = None,
    max_body: Annotated[str, typer.Option(help="Largest body, packed or unpacked.")] = "64MiB",
    max_held: Annotated[str, typer.Option(help="Bodies that may wait to be written; beyond it: 429.")] = "128MiB",
    max_connections: Annotated[
        int, typer.Option(min=1, help="Connections at a time, over HTTP and over gRPC each.")
    ] = 500,
    header_time: Annotated[
        float, typer.Option(min=0.1, help="Seconds in which a TLS handshake, or a request's head, has to be there.")
    ] = 10.0,
    idle_time: Annotated[float, typer.Option(min=0.1, help="Seconds that a connection may be idle.")] = 300.0,
    commit_every: Annotated[float, typer.Option(min=0.0, help="Least time between two flushes, in seconds.")] = 0.05,
    remember: Annotated[int, typer.Option(min=1, help="Records by which re-sent ones are recognised.")] = 1_000_000,
    store: StoreOption = DEFAULT_STORE,
    format: FormatOption = None,
    output: OutputOption = None,
    quiet: QuietOption = False,
) -> None:
    """Receive OpenTelemetry (traces, logs, metrics) into the store until SIGTERM or SIGINT; then say what came.

    What is acknowledged is on the disk. Prompts, outputs, salts and keys are dropped at the door and counted.
    """
    with _needing("otlp"):
        from kvwitness.collectors.otlp.connections import ConnectionLimits
        from kvwitness.collectors.otlp.genai import Reading
        from kvwitness.collectors.otlp.intake import Intake, Limits
        from kvwitness.collectors.otlp.senders import Senders
        from kvwitness.collectors.otlp.server import Listening, Settings, Tls, serve
        from kvwitness.collectors.otlp.tenants import DEFAULT, TenantFrom

    printer = Printer.choose(format, output)
    if host not in _LOOPBACK and senders is None and not anyone:
        raise KvwitnessError(
            f"Anyone who reaches {host} could write into the store.",
            "Name who may send with --senders FILE, or say --anyone.",
        )
    if (tls_cert is None) != (tls_key is None) or (client_ca is not None and tls_cert is None):
        raise KvwitnessError("TLS needs a certificate and its key.", "Give both --tls-cert and --tls-key.")
    settings = Settings(
        host=host,
        http_port=None if http_port < 0 else http_port,
        grpc_port=None if grpc_port < 0 else grpc_port,
        limits=Limits(_size(max_body), max(_size(max_held), _size(max_body)), commit_every, remember),
        connections=ConnectionLimits(max_connections, header_time, idle_time),
        reading=Reading(
            tenant_from=TenantFrom.of(tenant_from or DEFAULT, _salts(salt_map)),
            salt_key=salt_key() if salt_map is None else lasting_salt_key(),
            gateways=frozenset(gateway or ()),
            engines=frozenset(engine or ()),
        ),
        senders=Senders.from_file(senders) if senders is not None else Senders(),
        tls=Tls(tls_cert, tls_key, client_ca) if tls_cert is not None and tls_key is not None else None,
    )
    opened = open_or_create_store(store)

    def ready(listening: Listening, intake: Intake) -> None:
        doors = [f"OTLP/HTTP on {host}:{listening.http}"] if listening.http is not None else []
        doors += [f"OTLP/gRPC on {host}:{listening.grpc}"] if listening.grpc is not None else []
        say(f"receiving {' and '.join(doors) or 'nothing'} into {opened.path}", quiet=quiet)

    errands = _errands(scrape or [], scrape_every, kv_events or [], settings, quiet)
    intake = asyncio.run(serve(opened, settings, errands=errands, ready=ready, say=lambda text: say(text, quiet=quiet)))
    total = intake.total
    printer.record(
        {
            "kept": total.accepted,
            "doubled": total.doubled,
            "ignored": total.ignored,
            "rejected": dict(total.rejected),
            "content_dropped": dict(total.content + Counter(intake.report.dropped_content)),
            "unreadable": dict(total.unreadable),
            "events": intake.rows,
            "flushes": intake.flushes,
        }
    )


def _errands(scrape: list[str], every: float, kv_events: list[str], settings: Settings, quiet: bool) -> list[Errand]:
    """What is done beside receiving; imported only where it is asked for."""
    errands: list[Errand] = []

    def tell(text: str) -> None:
        say(text, quiet=quiet)

    if scrape:
        from kvwitness.collectors.endpoints.scrape import Scrape

        errands += [Scrape(*_named(text, "--scrape"), every, tell) for text in scrape]
    if kv_events:
        with _needing("cluster"):
            from kvwitness.collectors.endpoints.kv_events import KvEvents
        for text in kv_events:
            name, addresses = _named(text, "--kv-events")
            endpoint, _, replay = addresses.partition(",")
            errands.append(KvEvents(name, endpoint, replay or None, settings.reading.salt_key, tell))
    return errands


@contextmanager
def _needing(extra: str) -> Iterator[None]:
    """Around imports of what belongs to an optional part."""
    try:
        yield
    except ImportError as error:
        raise KvwitnessError(
            f"`kvwitness collect` needs more than is installed here: {error}.",
            f"Install the optional part: pip install 'kvwitness[{extra}]'.",
        ) from None


def _named(text: str, option: str) -> tuple[str, str]:
    name, equals, rest = text.partition("=")
    if not name or not equals or not rest or "/" in name:
        raise KvwitnessError(f"{option} {text!r} is not NAME=ADDRESS.", "NAME is the engine's, as its spans call it.")
    return name, rest


def _size(text: str) -> int:
    match = _SIZE.fullmatch(text.strip())
    if match is None or not int(match[1]):
        raise KvwitnessError(f"{text!r} is no size.", "Write a number of bytes, or such as 64MiB.")
    return int(match[1]) * _UNITS[match[2].lower()]


def _salts(path: Path | None) -> dict[str, str]:
    """Hash of a cache salt -> tenant."""
    if path is None:
        return {}
    try:
        salts = tomllib.loads(path.read_text(encoding="utf-8"))["salts"]
    except (OSError, ValueError, KeyError) as error:
        raise KvwitnessError(f"{path} cannot be read: {error}", "It needs a table [salts].") from None
    if not isinstance(salts, dict) or not all(isinstance(v, str) for v in salts.values()):
        raise KvwitnessError(f"{path}: [salts] is not a table of strings.")
    return salts
