"""`kvwitness audit`: judge a store or one trace."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from kvwitness.audit.api import as_document
from kvwitness.audit.cli.answers import TraceOption, judge_named
from kvwitness.audit.cli.buyer import buyer_blocks
from kvwitness.audit.cli.options import DEFAULT_STORE, FormatOption, OutputOption, QuietOption, StoreOption
from kvwitness.audit.cli.output import Format, Printer, say
from kvwitness.audit.cli.progress import stages
from kvwitness.audit.cli.stores import open_store
from kvwitness.audit.cli.summary import summary
from kvwitness.audit.errors import KvwitnessError
from kvwitness.audit.inforce import Parameters
from kvwitness.audit.overall.buyer import buyers_view
from kvwitness.audit.overall.overview import alarming, verdict_in_words
from kvwitness.audit.pipeline import Judgement
from kvwitness.audit.runs import audit_store
from kvwitness.audit.telling.answer import Answer

app = typer.Typer(add_completion=False)

_FOUND = 1


@app.command("audit")
def audit(
    store: StoreOption = DEFAULT_STORE,
    trace: TraceOption = None,
    as_buyer: Annotated[
        bool, typer.Option("--as-buyer", help="What a customer can know from its own logs; keeps no result.")
    ] = False,
    over: Annotated[
        int | None, typer.Option(min=0, help="With --as-buyer: the length of prompts that matters, in tokens.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="With --as-buyer: requests to this model alone.")] = None,
    provider: Annotated[
        str | None, typer.Option(help="With --as-buyer: requests to this provider alone, as the record names it.")
    ] = None,
    since: Annotated[str | None, typer.Option(help="With --as-buyer: begin of the window, UTC.")] = None,
    until: Annotated[str | None, typer.Option(help="With --as-buyer: end of the window, UTC, not included.")] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config", help="Rule parameters of this configuration of alerts; of a store, from now on.", exists=False
        ),
    ] = None,
    format: FormatOption = None,
    output: OutputOption = None,
    quiet: QuietOption = False,
) -> None:
    """Judge the whole store and keep the result in it; or one trace, without a store.

    Status 1 when there is a finding of leak, integrity or exposure; with --as-buyer, something to ask the provider.
    A store is judged with the rule parameters that are in force in it: those that `kvwitness check` or --config named
    last, else the defaults.

    As JSON it is one document: findings, a verdict for every request, findings about engines,
    rules that could not decide. As JSON Lines, CSV and Parquet it is the findings.
    """
    printer = Printer.choose(format, output)
    if as_buyer:
        if trace is not None:
            raise KvwitnessError("--as-buyer asks a store.", "Import the logs first: kvwitness import FILE.")
        view = buyers_view(open_store(store), over=over, model=model, provider=provider, since=since, until=until)
        if printer.for_people:
            printer.blocks(buyer_blocks(view))
        else:
            printer.record(view.to_dict())
        if view.suspicious:
            raise typer.Exit(_FOUND)
        return
    parameters = None
    if config is not None:
        from kvwitness.audit.alerts.config import rule_parameters

        parameters = rule_parameters(config)
    if trace is not None:
        judged = judge_named(trace, quiet=quiet, parameters=parameters)
        title, answer, judgement = judged.name, judged.answer, judged.judgement
        lookup = f" --trace {judged.name}"
    else:
        title, answer, judgement = _audited(store, parameters, quiet)
        lookup = "" if store == DEFAULT_STORE else f" --store {store}"
    if printer.for_people:
        printer.blocks(summary(answer, judgement.page_events, title=title, options=lookup))
    else:
        _print(printer, judgement)
        say(verdict_in_words(answer), quiet=quiet)
    if alarming(answer):
        raise typer.Exit(_FOUND)


def _audited(path: Path, parameters: Parameters | None, quiet: bool) -> tuple[str, Answer, Judgement]:
    store = open_store(path)
    with stages(quiet=quiet) as stage:
        run = audit_store(store, parameters=parameters, progress=stage)
    if told := run.parameters.told():
        say(f"judged with {', '.join(told)} ({run.parameters.origin or 'named by a program'})", quiet=quiet)
    say(f"audit {run.run_id} took {run.seconds:.1f} s and is kept in the store", quiet=quiet)
    return str(store.path), Answer.of_store(store), run.judgement


def _print(printer: Printer, judgement: Judgement) -> None:
    document = as_document(judgement)
    if printer.format is Format.JSON:
        printer.record(document)
        return
    findings: list[dict[str, Any]] = [*document["findings"], *document["engine_findings"]]
    if printer.format is not Format.JSONL:
        columns = dict.fromkeys(name for finding in findings for name in finding)
        findings = [{name: finding.get(name) for name in columns} for finding in findings]
    printer.objects(findings)
