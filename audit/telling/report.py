"""One incident as a document that stands alone: HTML without scripts, and without anything fetched from elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

import polars as pl

from kvwitness import __version__
from kvwitness.audit.rules import RULES
from kvwitness.audit.telling.dossier import Dossier
from kvwitness.audit.telling.exhibits import exhibits, statements
from kvwitness.audit.telling.history import collapsed
from kvwitness.audit.telling.story import headline, tell, victims
from kvwitness.audit.wording import moment, page_text, runs_text, span_text

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1b1b1f; background: #fff; max-width: 70rem; margin: 2rem auto;
  padding: 0 1rem }
h1 { font-size: 1.5rem } h2 { font-size: 1.15rem; margin-top: 2rem }
table { border-collapse: collapse; width: 100%; font-size: 13px }
th, td { border-bottom: 1px solid #d8d8de; padding: .3rem .6rem; text-align: left; vertical-align: top }
pre { background: #f4f4f6; padding: .8rem; overflow-x: auto }
.proof { font-weight: 600 }
"""


def as_html(dossier: Dossier, notes: Iterable[dict[str, Any]] = ()) -> str:
    """The incident: its story, findings, evidence, rules, SQL and notes (entries of the casebook)."""
    name = dossier.incident["incident"] if dossier.incident else f"request {dossier.name}"
    _, *story = tell(dossier)
    parts = [
        f"<h1>{escape(name)}: {escape(dossier.verdict)}</h1>",
        f"<p><strong>{escape(headline(dossier))}</strong></p>",
        *(f"<p>{escape(paragraph)}</p>" for paragraph in story),
        "<h2>What the rules found</h2>",
        _table(
            ["verdict", "rule", "pool", "pages", "what"],
            [[f["verdict"], f["rule"], f["pool"], page_text(f["pages"], 6), f["why"]] for f in dossier.findings],
        ),
        "<h2>Evidence</h2>",
        "<p>Bold: a rule names the event as proof. Times are reference times in UTC.</p>",
        _evidence(dossier),
        "<h2>The rules</h2>",
        *_rules(dossier),
        "<h2>The same in SQL</h2>",
        *(f"<p>{escape(question)}</p><pre>{escape(sql)};</pre>" for question, sql in statements(dossier)),
        *_notes(notes),
        f"<p>Written by kvwitness {escape(__version__)}. It holds no prompts and no outputs.</p>",
    ]
    head = f'<meta charset="utf-8"><title>{escape(name)}</title><style>{_STYLE}</style>'
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n' + "\n".join(parts) + "\n</body></html>\n"


def _table(columns: Sequence[str], rows: Iterable[Sequence[Any]], proofs: Sequence[bool] = ()) -> str:
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in columns)
    body = []
    for number, row in enumerate(rows):
        kind = ' class="proof"' if number < len(proofs) and proofs[number] else ""
        cells = "".join(f"<td>{escape('' if cell is None else str(cell))}</td>" for cell in row)
        body.append(f"<tr{kind}>{cells}</tr>")
    return f"<table><thead><tr>{head}</tr></thead><tbody>\n" + "\n".join(body) + "\n</tbody></table>"


def _evidence(dossier: Dossier) -> str:
    rows = evidence(dossier)
    cells = [
        [r["time"], r["source"], r["seq"], r["event"], r["pages"], r["positions"], r["who"], r["what"]] for r in rows
    ]
    columns = ["time", "source", "seq", "event", "pages", "positions", "request", "what it shows"]
    return _table(columns, cells, [bool(r["proof"]) for r in rows])


def evidence(dossier: Dossier) -> list[dict[str, Any]]:
    """The exhibits as text, what is done over and over in one row: time, time_ns, source, seq, event, pool, pages,
    positions, who, tenant, what, proof (whether a rule names it), rules."""
    rows = collapsed(exhibits(dossier), ["source", "event", "pool", "pages", "request", "rules"], "tok", "shows")
    return [
        {
            "time": moment(row["time_ns"]),
            "time_ns": row["time_ns"],
            "source": row["source"],
            "seq": row["seq"],
            "event": row["event"],
            "pool": row["pool"],
            "pages": runs_text(row["pages"], 4),
            "positions": span_text(row["tok"]),
            "who": row["request"],
            "tenant": row["tenant"],
            "what": row["shows"]
            + (f"; {row['times']} times, until {moment(row['until_ns'])}" if row["until_ns"] else ""),
            "proof": bool(row["rules"]),
            "rules": ", ".join(row["rules"]),
        }
        for row in rows
    ]


def _rules(dossier: Dossier) -> Iterable[str]:
    for name in dict.fromkeys(finding["rule"] for finding in dossier.findings):
        if (rule := RULES.get(name)) is not None:
            yield (
                f"<p><strong>{escape(rule.id)}: {escape(rule.title)}.</strong> {escape(rule.meaning)} "
                f"<em>May be wrong where:</em> {escape(rule.false_positives)}</p>"
            )


def _notes(notes: Iterable[dict[str, Any]]) -> Iterable[str]:
    rows = [[moment(n["at_ns"]), n["by"], n["deed"], n["assignee"], n["text"]] for n in notes]
    if rows:
        yield "<h2>Notes</h2>"
        yield _table(["when", "who", "what", "to", "text"], rows)


def to_notify(dossier: Dossier) -> pl.DataFrame:
    """The tenants whose content could be read, one row each: what can be told to them, and what shows it.

    tenant, incident, request and reader (null where the incident belongs to no request), and of the findings that name
    the tenant: rules, pools, since and until (UTC) and evidence (`source:seq`). A finding about several tenants does
    not tell their pages apart, so none are counted here.
    """
    row, request = dossier.incident or {}, dossier.request or {}
    told = []
    for tenant in victims(dossier):
        mine = [f for f in dossier.findings if f["verdict"] == "leak" and tenant in f["other_tenants"]]
        times = [f["time_ns"] for f in mine if f["time_ns"] is not None]
        told.append(
            {
                "tenant": tenant,
                "incident": row.get("incident"),
                "request": dossier.name,
                "reader": request.get("tenant"),
                "rules": sorted({f["rule"] for f in mine}),
                "pools": sorted({f["pool"] for f in mine if f["pool"]}),
                "since": moment(min(times)) if times else None,
                "until": moment(max(times)) if times else None,
                "evidence": list(dict.fromkeys(f"{s['source']}:{s['seq']}" for f in mine for s in f["seqs"])),
            }
        )
    return pl.DataFrame(told)


def events_of(dossier: Dossier) -> pl.DataFrame:
    """The events of the dossier, without columns that nothing stands in: for a file."""
    filled = [c.name for c in dossier.events.iter_columns() if c.null_count() < len(c)]
    return dossier.events.select(filled)


def as_jsonl(dossier: Dossier) -> bytes:
    """The events of the dossier as JSON Lines, in replay order, absent fields left out."""
    import orjson

    lines = (
        orjson.dumps({k: v for k, v in row.items() if v is not None}, default=str, option=orjson.OPT_APPEND_NEWLINE)
        for row in events_of(dossier).iter_rows(named=True)
    )
    return b"".join(lines)
