"""What `kvwitness lab run` prints: the answers beside what kvwitness found."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kvwitness.audit.trace.pages import expand_pages
from kvwitness.gpu_tracer.lab.faults import TOLD, Fault, Guard
from kvwitness.gpu_tracer.lab.judge import Judged
from kvwitness.gpu_tracer.lab.run import Outcome
from kvwitness.gpu_tracer.lab.traffic import ASH, OTHER_SECRET, SECRET

_WIDTH = 110
_GUARDED = {
    Guard.NONE: "",
    Guard.SCRUB: " Pages are scrubbed when they are freed.",
    Guard.POISON: " Pages are filled with marks when they are freed.",
    Guard.REFUSE: " Rows that are not written are refused.",
}


def answers(outcome: Outcome, fault: Fault, guard: Guard) -> Iterator[str]:
    """The traffic, as the clients saw it, and what the answers depend on."""
    yield from _wrapped(f"Fault {fault}: {TOLD[fault].happens}.{_GUARDED[guard]}")
    yield ""
    yield "request   tenant   prompt  status  answer"
    for one in outcome.answers:
        mark = f"   <- the secret of {ASH}" if outcome.tells(one) else ""
        said = repr(one.text) if one.status == 200 else ""
        yield f"{one.job.request:8}  {one.job.tenant:7}  {len(one.job.prompt):6}  {one.status:6}  {said}{mark}".rstrip()
    yield ""
    told = [one for one in outcome.answers if outcome.tells(one)]
    for one in told[:1]:
        yield from _wrapped(f"{ASH} had sent:  {outcome.script.secret.prompt}")
        yield from _wrapped(f"{one.job.tenant} sent:  {_shortened(one.job.prompt)}")
    alike = f"With {OTHER_SECRET} for {SECRET} in the prompts of {ASH}, and all else alike,"
    for one, other in outcome.depending:
        yield from _wrapped(f"{alike} {one.job.tenant} is answered {other.text!r} to {one.job.request}.")
    if not outcome.depending:
        yield from _wrapped(f"{alike} nobody else's answer changes.")


def findings(judged: Judged) -> Iterator[str]:
    """The incidents, with pages, generations and what the rules say."""
    yield ""
    yield "What kvwitness found, which saw pages and fingerprints, and no text:"
    if not judged.incidents:
        yield f"nothing: {len(judged.requests)} requests, all {' or '.join(sorted(set(judged.requests.values())))}"
    for incident in judged.incidents:
        yield ""
        whose = f", content of {', '.join(incident['other_tenants'])}" if incident["other_tenants"] else ""
        about = f"request {incident['request']} of {incident['tenant']}"
        yield f"{incident['incident']}  {incident['verdict'].upper()}  {about}{whose}"
        for place in incident["pools"]:
            yield f"  pages {_runs(place['pages'])} of {place['pool']}, generations {_runs(place['gens'])}"
        rows = [one for one in judged.findings if one["request"] == incident["request"]]
        strongest = [row for row in rows if row["verdict"] == incident["verdict"]]
        for row in strongest:
            yield from _wrapped(f"  {row['rule']}: {row['why']}", "    ")
        if others := sorted({row["rule"] for row in rows} - {row["rule"] for row in strongest}):
            yield from _wrapped(f"  and {', '.join(others)}", "    ")


def stale_page(judged: Judged) -> tuple[str, int] | None:
    """A pool and a page of it that had the wrong bytes; None when no rule says so."""
    for row in judged.findings:
        if row["rule"] == "stale-content" and row["pages"]:
            return row["pool"], expand_pages(row["pages"])[0]
    return None


def fingerprints(pool: str, page: int, rows: list[dict[str, str]]) -> Iterator[str]:
    """The last fingerprints of a page, the layers side by side."""
    yield ""
    yield f"Fingerprints of page {page} of {pool}: when taken and for whom, over how many slots, layer 0, layer 1"
    for row in rows[-4:]:
        basis, _, layers = row["digest"].partition(":")
        slots = basis.partition("/")[2]
        yield f"  {row['time']}  {row['at']:7}  {row['request']:8}  {slots:>2}  {layers.replace('.', '  ')}"


def onward(judged: Judged, store: Path) -> Iterator[str]:
    """What to ask next."""
    if judged.incidents:
        yield ""
        yield f"The whole story: kvwitness explain {judged.incidents[0]['incident']} --store {store}"


def _wrapped(text: str, indent: str = "  ") -> list[str]:
    return textwrap.wrap(text, _WIDTH, subsequent_indent=indent, replace_whitespace=False)


def _shortened(text: str, most: int = 60) -> str:
    return text if len(text) <= most else f"{text[: most // 2]}... {text[-most // 2 :]}"


def _runs(items: list[Any]) -> str:
    return ", ".join(f"{one[0]}-{one[1]}" if isinstance(one, list) else str(one) for one in items)
