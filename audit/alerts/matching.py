"""Which alerts a route, a silence or an acceptance is about."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from kvwitness.audit.alerts.model import OPERATION, SEVERITIES, rank
from kvwitness.audit.alerts.reading import Section

VERDICTS = ("leak", "integrity", "exposure", "unproven", OPERATION)
_FIELDS = ("verdict", "rule", "engine", "tenant", "incident")


@dataclass(frozen=True)
class Matcher:
    """Conditions that all have to hold; one that is empty always does. Texts may hold `*`."""

    verdict: tuple[str, ...] = ()
    rule: tuple[str, ...] = ()
    """One of the rules."""
    engine: tuple[str, ...] = ()
    tenant: tuple[str, ...] = ()
    """One of the tenants, on either side."""
    incident: tuple[str, ...] = ()
    severity: str = SEVERITIES[0]
    """At least this."""

    def in_words(self) -> str:
        """The conditions that are not empty."""
        told = [f"{name} {' or '.join(getattr(self, name))}" for name in _FIELDS if getattr(self, name)]
        return ", ".join(told) or "everything"

    def fits(
        self,
        *,
        verdict: str,
        rules: Iterable[str],
        engines: Iterable[str],
        tenants: Iterable[str],
        incidents: Iterable[str],
        severity: str,
    ) -> bool:
        """Whether something with these properties is meant."""
        pairs = (
            (self.verdict, [verdict]),
            (self.rule, rules),
            (self.engine, engines),
            (self.tenant, tenants),
            (self.incident, incidents),
        )
        return rank(severity) >= rank(self.severity) and all(_one_of(wanted, have) for wanted, have in pairs)

    @property
    def empty(self) -> bool:
        """Whether it means everything."""
        return self == Matcher()


def _one_of(wanted: Sequence[str], have: Iterable[str]) -> bool:
    return not wanted or any(fnmatchcase(name, pattern) for name in have for pattern in wanted)


def read_matcher(section: Section, known_rules: Sequence[str]) -> Matcher:
    """A matcher from a table of configuration."""
    found = Matcher(
        verdict=section.texts("verdict", (), VERDICTS),
        rule=section.texts("rule", ()),
        engine=section.texts("engine", ()),
        tenant=section.texts("tenant", ()),
        incident=section.texts("incident", ()),
        severity=section.choice("severity", SEVERITIES, SEVERITIES[0]),
    )
    for name in found.rule:
        if not any(fnmatchcase(rule, name) for rule in known_rules):
            raise section.error("rule", f"holds {name!r}, which fits no rule", "`kvwitness rules list` shows them.")
    section.done()
    return found


@dataclass(frozen=True)
class Conditions:
    """Pairs NAME=VALUE from a command line, for `Matcher`."""

    values: dict[str, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, pairs: Sequence[str]) -> Conditions:
        """Raises ValueError for a pair that is not NAME=VALUE with a known NAME."""
        values: dict[str, tuple[str, ...]] = {}
        for pair in pairs:
            name, sign, value = pair.partition("=")
            if not sign or not value or name not in _FIELDS:
                raise ValueError(f"{pair!r} is not NAME=VALUE, where NAME is one of {', '.join(_FIELDS)}")
            values[name] = (*values.get(name, ()), value)
        return cls(values)

    def check(self, known_rules: Iterable[str]) -> None:
        """Raises ValueError for a rule or a verdict that fits nothing there is."""
        known = list(known_rules)
        for rule in self.values.get("rule", ()):
            if not any(fnmatchcase(one, rule) for one in known):
                raise ValueError(f"{rule!r} fits no rule (`kvwitness rules list` shows them)")
        for verdict in self.values.get("verdict", ()):
            if not any(fnmatchcase(one, verdict) for one in VERDICTS):
                raise ValueError(f"{verdict!r} fits no verdict ({', '.join(VERDICTS)})")

    def matcher(self) -> Matcher:
        """The matcher that they describe."""
        of = self.values.get
        return Matcher(of("verdict", ()), of("rule", ()), of("engine", ()), of("tenant", ()), of("incident", ()))
