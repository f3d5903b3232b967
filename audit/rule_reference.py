"""The rule reference in Markdown, written from the rules themselves."""

from __future__ import annotations

from collections.abc import Iterable

from kvwitness.audit.rules.model import Example, Param, Rule

_HEAD = """\
# Rules

<!-- Written by `kvwitness rules reference`; edit the rules, not this page. -->

Each rule is one file in `audit/rules`, with its meaning, its query and both examples. `kvwitness rules test`
judges the examples.
"""

SHOWN_LINES = 16
"""Examples of anomalies need weeks of events: of what is longer, the beginning and the end are shown."""


def reference(rules: Iterable[Rule]) -> str:
    """The whole page: an overview, then every rule in the given order."""
    listed = list(rules)
    rows = [f"| [`{r.id}`](#{r.id}) | {_verdicts(r)} | {r.severity} | {_cell(r.title)} |" for r in listed]
    overview = ["| rule | verdict | severity | what it is |", "|---|---|---|---|", *rows]
    return "\n\n".join([_HEAD.rstrip(), "\n".join(overview), *[_section(r) for r in listed]]) + "\n"


def _section(rule: Rule) -> str:
    parts = [
        f"## {rule.id}",
        f"**{rule.title}**",
        rule.meaning.strip(),
        _facts(rule),
        f"*False positives:* {rule.false_positives.strip()}",
    ]
    if rule.params:
        parts.append(_params(rule.params))
    parts += [_example("It fires", rule.positive), _example("It does not fire", rule.negative)]
    return "\n\n".join(parts)


def _facts(rule: Rule) -> str:
    facts = {
        "Verdict": _verdicts(rule),
        "Severity": rule.severity + (" (anomaly: belongs to a tenant or an engine)" if rule.anomaly else ""),
        "Needs": ", ".join(f"`{kind}`" for kind in rule.needs) or "nothing in particular",
        "References": ", ".join(rule.references),
        "ATLAS": ", ".join(rule.atlas),
        "CWE": ", ".join(rule.cwe),
    }
    return "\n".join(f"- {name}: {value}" for name, value in facts.items() if value)


def _params(params: Iterable[Param]) -> str:
    rows = [f"| `{p.name}` | {p.default} {p.unit} | {_cell(p.meaning)} |" for p in params]
    return "\n".join(["| parameter | default | meaning |", "|---|---|---|", *rows])


def _example(title: str, example: Example) -> str:
    lines = example.trace.strip().splitlines()
    if len(lines) > SHOWN_LINES:
        kept = SHOWN_LINES // 2
        lines = [*lines[:kept], f"... {len(lines) - 2 * kept:,} more lines ...", *lines[-kept:]]
    return "\n".join(
        [
            "<details>",
            f"<summary>{title}: {example.title}</summary>",
            "",
            "```json",
            *lines,
            "```",
            "",
            "</details>",
        ]
    )


def _verdicts(rule: Rule) -> str:
    return ", ".join(str(v) for v in rule.verdicts)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
