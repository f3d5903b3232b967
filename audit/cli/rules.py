"""`kvwitness rules`: what can be found, and whether each rule still finds it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import polars as pl
import typer

from kvwitness.audit.cli.options import FormatOption, OutputOption, QuietOption
from kvwitness.audit.cli.output import Printer, say
from kvwitness.audit.cli.progress import progress
from kvwitness.audit.rule_examples import ExampleResult, check_examples
from kvwitness.audit.rule_reference import reference
from kvwitness.audit.rules import RULES, get
from kvwitness.audit.rules.model import Rule

app = typer.Typer(no_args_is_help=True, add_completion=False, help="The rules: list, show, test.")

_FAILED = 1


@app.command("list")
def list_rules(format: FormatOption = None, output: OutputOption = None) -> None:
    """List every rule with the verdicts that it can give."""
    rows = [
        {
            "rule": rule.id,
            "verdicts": [str(v) for v in rule.verdicts],
            "severity": rule.severity,
            "anomaly": rule.anomaly,
            "title": rule.title,
        }
        for rule in RULES.values()
    ]
    Printer.choose(format, output).rows(pl.DataFrame(rows, schema=_LISTED))


@app.command("show")
def show(
    rule: Annotated[str, typer.Argument(metavar="RULE", help="Id of the rule.")],
    format: FormatOption = None,
    output: OutputOption = None,
) -> None:
    """Show one rule: what it means, what it needs, when it is wrong, what can be set."""
    Printer.choose(format, output).record(_record(get(rule)))


@app.command("test")
def judge_examples(
    rules: Annotated[list[str] | None, typer.Argument(metavar="[RULE]...", help="Default: all.")] = None,
    format: FormatOption = None,
    output: OutputOption = None,
    quiet: QuietOption = False,
) -> None:
    """Judge the examples that stand beside the rules; status 1 when one does not come out as stated."""
    # Judging loads the whole engine; listing does not have to wait for that.
    from kvwitness.audit.api import judge_trace

    chosen = [get(rule) for rule in rules] if rules else list(RULES.values())
    results: list[ExampleResult] = []
    with progress("judging examples", quiet=quiet) as report:
        for done, rule in enumerate(chosen):
            report(done, len(chosen))
            results += check_examples(rule, judge_trace)
    Printer.choose(format, output).rows(pl.DataFrame([asdict(r) for r in results], schema=_TESTED))
    failed = sum(not r.passed for r in results)
    say(f"{len(results)} examples of {len(chosen)} rules, {failed} failed", quiet=quiet)
    if failed:
        raise typer.Exit(_FAILED)


@app.command("reference")
def print_reference() -> None:
    """Print the reference of all rules in Markdown, as in docs/rules.md."""
    typer.echo(reference(RULES.values()), nl=False)


_LISTED = pl.Schema(
    {
        "rule": pl.String(),
        "verdicts": pl.List(pl.String()),
        "severity": pl.String(),
        "anomaly": pl.Boolean(),
        "title": pl.String(),
    }
)
_TESTED = pl.Schema(
    {
        "rule": pl.String(),
        "example": pl.String(),
        "title": pl.String(),
        "passed": pl.Boolean(),
        "why": pl.String(),
    }
)


def _record(rule: Rule) -> dict[str, Any]:
    return {
        "rule": rule.id,
        "title": rule.title,
        "verdicts": [str(v) for v in rule.verdicts],
        "severity": rule.severity,
        "anomaly": rule.anomaly,
        "meaning": rule.meaning,
        "needs": list(rule.needs),
        "false_positives": rule.false_positives,
        "references": list(rule.references),
        "atlas": list(rule.atlas),
        "cwe": list(rule.cwe),
        "parameters": [asdict(p) for p in rule.params],
        "positive": asdict(rule.positive),
        "negative": asdict(rule.negative),
    }
