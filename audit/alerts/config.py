"""The configuration of alerts: one TOML file, and what it means once it is read and found right."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvwitness.audit.alerts.cadence import Cadence, Every, cron, duration_ns
from kvwitness.audit.alerts.matching import VERDICTS, Matcher, read_matcher
from kvwitness.audit.alerts.model import OPERATION, SEVERITIES
from kvwitness.audit.alerts.operations import OPERATIONS
from kvwitness.audit.alerts.reading import ConfigError, Section
from kvwitness.audit.alerts.sinks import sink_kinds
from kvwitness.audit.alerts.sinks.model import Sink
from kvwitness.audit.inforce import Parameters
from kvwitness.audit.rules import RULES
from kvwitness.audit.rules.model import Rule

BEAT_FILE = "file"
"""What the file of the heartbeat is called among its targets."""
_HOUR, _DAY = duration_ns("1h"), duration_ns("1d")
_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
GROUPINGS = ("verdict", "rule", "engine", "tenant", "incident")
_ALERTED = ("leak", "integrity", "exposure", OPERATION)


@dataclass(frozen=True)
class RuleSetting:
    """What configuration says of one rule."""

    cadence: Cadence | None = None
    """None: that of the schedule."""
    severity: str | None = None
    runbook: str | None = None
    enabled: bool = True
    """False: it is judged as ever, and raises no alert."""
    params: Mapping[str, float | int | str] = field(default_factory=dict)


@dataclass(frozen=True)
class Route:
    """Which sinks hear of which alerts."""

    name: str
    match: Matcher
    sinks: tuple[str, ...]
    goes_on: bool
    """Whether later routes are asked as well."""


@dataclass(frozen=True)
class Silence:
    """Alerts that nobody is told of for a time; they are kept, and told if they last."""

    id: str
    match: Matcher
    owner: str
    until_ns: int
    reason: str
    from_ns: int = 0


@dataclass(frozen=True)
class Acceptance:
    """A risk that somebody took upon themselves until a date: it changes severity, and ends loudly."""

    id: str
    match: Matcher
    accepted_by: str
    until_ns: int
    reason: str
    severity: str
    """Of alerts that it covers."""
    warn_ns: int
    """How long before its end to warn."""


@dataclass(frozen=True)
class QuietHours:
    """Times at which only urgent messages go out; others wait for their end."""

    days: tuple[int, ...]
    """On which they begin; Monday is 0."""
    start: int
    """Minutes since midnight."""
    end: int
    """The same; before `start`: on the next day."""
    zone: str
    urgent: str
    """From this severity on messages go out all the same."""


@dataclass(frozen=True)
class Heartbeat:
    """A sign of life, for somebody who notices when it stays away."""

    every_ns: int
    sinks: tuple[str, ...] = ()
    file: Path | None = None

    @property
    def targets(self) -> tuple[str, ...]:
        """Where it goes: names of sinks, and `BEAT_FILE`."""
        return (*self.sinks, *([BEAT_FILE] if self.file is not None else []))


@dataclass(frozen=True)
class Config:
    """Everything that is set."""

    runbook: str
    """Address, in which `{rule}` stands for the rule."""
    file: Path | None = None
    """Where it stands."""
    dashboard: str | None = None
    zone: str = "UTC"
    cadence: Cadence = field(default_factory=lambda: Every(duration_ns("5m")))
    missed_after_ns: int = duration_ns("30m")
    silent_after_ns: int | None = None
    """How long no event may arrive at all."""
    verdicts: tuple[str, ...] = _ALERTED
    group_by: tuple[str, ...] = ("verdict", "engine")
    resolve_after_ns: int = _DAY
    update_every_ns: int = _HOUR
    flap_memory_ns: int = 7 * _DAY
    storm: int = 20
    name_tenants: bool = False
    floors: Mapping[str, str] = field(default_factory=lambda: {"leak": "critical", "integrity": "high"})
    """Verdict -> at least this severity."""
    rules: Mapping[str, RuleSetting] = field(default_factory=dict)
    routes: tuple[Route, ...] = ()
    sinks: Mapping[str, Sink] = field(default_factory=dict)
    silences: tuple[Silence, ...] = ()
    acceptances: tuple[Acceptance, ...] = ()
    quiet: tuple[QuietHours, ...] = ()
    heartbeat: Heartbeat | None = None

    def rule(self, rule: str) -> RuleSetting:
        """What is set for a rule."""
        return self.rules.get(rule, RuleSetting())

    def cadence_of(self, rule: str) -> Cadence:
        """How often a rule is looked at."""
        return self.rule(rule).cadence or self.cadence

    @property
    def parameters(self) -> Parameters:
        """The rule parameters, as the audit takes them."""
        return _parameters(self.rules, self.file)


def load(path: Path) -> Config:
    """Read and check a configuration file; raises `ConfigError` that says where and what."""
    raw, text = _read(path)
    return _config(Section(raw, path, text), path)


def _read(path: Path) -> tuple[dict[str, Any], str]:
    try:
        text = path.read_text(encoding="utf-8-sig")  # with the mark that some editors put first, or without
        return tomllib.loads(text), text
    except FileNotFoundError:
        raise ConfigError(
            f"There is no configuration {path}.",
            "Name one with --config FILE; `kvwitness alerts example` prints one to begin with.",
        ) from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as exc:
        raise ConfigError(f"{path} is no TOML: {exc}.") from exc
    except OSError as exc:
        raise ConfigError(f"The configuration {path} cannot be read: {exc.strerror}.") from exc


def accepted_risks(path: Path) -> tuple[Acceptance, ...]:
    """The risk acceptances of a configuration alone: for whoever shows them and has none of the keys of its sinks."""
    raw, text = _read(path)
    root = Section(raw, path, text)
    zone = root.zone("timezone", "UTC")
    return tuple(_acceptance(section, zone) for section in root.sections("acceptance"))


def rule_parameters(path: Path) -> Parameters:
    """The rule parameters of a configuration alone: for whoever judges, and has none of the keys of its sinks."""
    raw, text = _read(path)
    root = Section(raw, path, text)
    return _parameters(_rules(root, root.zone("timezone", "UTC"), path), path)


def _parameters(rules: Mapping[str, RuleSetting], file: Path | None) -> Parameters:
    own = {rule: dict(setting.params) for rule, setting in rules.items() if setting.params}
    return Parameters(own, str(file.resolve()) if own and file is not None else None)


def _config(root: Section, path: Path) -> Config:
    zone = root.zone("timezone", "UTC")
    schedule, alerts = root.section("schedule"), root.section("alerts")
    sinks = _sinks(root)
    config = Config(
        runbook=_runbook(root, "runbook"),
        file=path,
        dashboard=root.url("dashboard", None),
        zone=zone,
        cadence=_cadence(schedule, zone) or Every(duration_ns("5m")),
        missed_after_ns=schedule.duration("missed_after", "30m"),
        silent_after_ns=schedule.duration("silent_after") if "silent_after" in schedule else None,
        verdicts=alerts.texts("verdicts", _ALERTED, VERDICTS),
        group_by=alerts.texts("group_by", ("verdict", "engine"), GROUPINGS),
        resolve_after_ns=alerts.duration("resolve_after", "24h"),
        update_every_ns=alerts.duration("update_every", "1h"),
        flap_memory_ns=alerts.duration("flap_memory", "7d"),
        storm=alerts.whole("storm", 20, low=1),
        name_tenants=alerts.flag("name_tenants", False),
        floors=_floors(root.section("severity")),
        rules=_rules(root, zone, path),
        sinks=sinks,
        routes=_routes(root, sinks),
        silences=tuple(_silence(s, zone) for s in root.sections("silence")),
        acceptances=tuple(_acceptance(s, zone) for s in root.sections("acceptance")),
        quiet=tuple(_quiet(s, zone) for s in root.sections("quiet_hours")),
        heartbeat=_heartbeat(root.section("heartbeat"), sinks, path) if "heartbeat" in root else None,
    )
    for section in (schedule, alerts, root):
        section.done()
    _names_once(root, "acceptance", [a.id for a in config.acceptances])
    _names_once(root, "silence", [s.id for s in config.silences])
    return config


def _names_once(root: Section, key: str, names: list[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise root.error(key, f"holds the id {name!r} twice")


def _runbook(section: Section, key: str) -> str:
    """Required: every alert carries a link to what to do."""
    address: str = section.url(key)
    if "{" in address.replace("{rule}", ""):
        raise section.error(key, f"is {address!r}; only {{rule}} is filled in")
    return address


def _cadence(section: Section, zone: str) -> Cadence | None:
    if "every" in section and "cron" in section:
        raise section.error("cron", "stands beside `every`; one of the two has to go")
    if "every" in section:
        period = section.duration("every")
        if period < duration_ns("1s"):
            raise section.error("every", "has to be one second or more")
        return Every(period)
    if "cron" in section:
        expression = section.text("cron")
        try:
            return cron(expression, zone)
        except ValueError as exc:
            raise section.error("cron", f"is wrong: {exc}") from None
    return None


def _floors(section: Section) -> dict[str, str]:
    floors = {"leak": "critical", "integrity": "high"}
    for verdict in section.names():
        if verdict not in VERDICTS:
            raise section.error(verdict, "is no verdict", f"Verdicts: {', '.join(VERDICTS)}.")
        floors[verdict] = section.choice(verdict, SEVERITIES)
    return floors


def _rules(root: Section, zone: str, path: Path) -> dict[str, RuleSetting]:
    """Settings from the file itself, over those of the YAML files that it names."""
    found: dict[str, RuleSetting] = {}
    for name in root.texts("rule_files", ()):
        found |= _settings(_yaml_section(root, path.parent / name), zone)
    return found | _settings(root.section("rules"), zone)


def _yaml_section(root: Section, file: Path) -> Section:
    try:
        import yaml
    except ImportError:
        raise root.error("rule_files", "needs the package PyYAML", "Install kvwitness[alerts].") from None
    try:
        text = file.read_text(encoding="utf-8")
        raw: Any = yaml.safe_load(text) or {}
    except (OSError, UnicodeDecodeError) as exc:
        raise root.error("rule_files", f"names {file}, which cannot be read: {exc}") from exc
    except yaml.YAMLError as exc:
        raise ConfigError(f"{file} is no YAML: {exc}.") from exc
    if not isinstance(raw, dict):
        raise ConfigError(f"{file} has to hold one entry per rule, named by its id.")
    return Section(raw, file, text)


def _settings(section: Section, zone: str) -> dict[str, RuleSetting]:
    found = {}
    for name in section.names():
        rule = RULES.get(name)
        if rule is None and name not in OPERATIONS:
            raise section.error(name, "is no rule", "`kvwitness rules list` shows them.")
        found[name] = _setting(section.section(name), rule, zone)
    return found


def _setting(section: Section, rule: Rule | None, zone: str) -> RuleSetting:
    params = {}
    for param in rule.params if rule else ():
        if param.name not in section:
            continue
        if isinstance(param.default, str):
            params[param.name] = section.text(param.name)
        else:
            value = section.number(param.name)
            if isinstance(param.default, int) and value != int(value):
                raise section.error(param.name, f"is {value}; it has to be a whole number")
            params[param.name] = type(param.default)(value)
    setting = RuleSetting(
        cadence=_cadence(section, zone),
        severity=section.choice("severity", SEVERITIES, None),
        runbook=_runbook(section, "runbook") if "runbook" in section else None,
        enabled=section.flag("enabled", True),
        params=params,
    )
    section.done()
    return setting


def _sinks(root: Section) -> dict[str, Sink]:
    sinks, kinds = root.section("sinks"), sink_kinds()
    made = {}
    for name in sinks.names():
        section = sinks.section(name)
        kind = kinds[section.choice("type", sorted(kinds))]
        made[name] = kind.make(section)
        section.done()
    return made


def _known_sinks(section: Section, key: str, sinks: Mapping[str, Sink]) -> tuple[str, ...]:
    if not sinks:
        raise section.error(key, "names sinks, and there are none", "Add a table [sinks.NAME] with a `type`.")
    names: tuple[str, ...] = section.texts(key, None, sorted(sinks))
    return names


def _routes(root: Section, sinks: Mapping[str, Sink]) -> tuple[Route, ...]:
    routes: list[Route] = []
    for section in root.sections("route"):
        match = read_matcher(section.section("match"), [*RULES, *OPERATIONS])
        name = section.text("name")
        if before := next((r.name for r in routes if r.match.empty and not r.goes_on), None):
            raise section.error("name", f"is {name!r}, which is never asked: {before!r} before it takes everything")
        routes.append(Route(name, match, _known_sinks(section, "sinks", sinks), section.flag("continue", False)))
        section.done()
    if sinks and not routes:
        raise root.error("route", "is missing: there are sinks, and nothing is sent to them", "Add a table [[route]].")
    if sinks and not routes[-1].match.empty:
        raise root.error(
            "route",
            "ends with a route that has conditions, so that alerts could go nowhere",
            "Let the last [[route]] have no `match`.",
        )
    _names_once(root, "route", [r.name for r in routes])
    return tuple(routes)


def _limited(section: Section, what: str) -> Matcher:
    match = read_matcher(section.section("match"), [*RULES, *OPERATIONS])
    if match.empty:
        raise section.error("match", f"has no condition, so that this {what} would cover everything")
    return match


def _silence(section: Section, zone: str) -> Silence:
    silence = Silence(
        id=section.text("id"),
        match=_limited(section, "silence"),
        owner=section.text("owner"),
        until_ns=section.moment("until", zone),
        reason=section.text("reason"),
        from_ns=section.moment("from", zone) if "from" in section else 0,
    )
    if silence.from_ns >= silence.until_ns:
        raise section.error("until", "is not later than `from`")
    section.done()
    return silence


def _acceptance(section: Section, zone: str) -> Acceptance:
    acceptance = Acceptance(
        id=section.text("id"),
        match=_limited(section, "acceptance"),
        accepted_by=section.text("accepted_by"),
        until_ns=section.moment("until", zone),
        reason=section.text("reason"),
        severity=section.choice("severity", SEVERITIES, "info"),
        warn_ns=section.duration("warn_before", "14d"),
    )
    section.done()
    return acceptance


def _quiet(section: Section, zone: str) -> QuietHours:
    days = section.texts("days", _DAYS, _DAYS)
    hours = QuietHours(
        days=tuple(_DAYS.index(day) for day in days),
        start=section.minute("from"),
        end=section.minute("to"),
        zone=section.zone("timezone", zone),
        urgent=section.choice("urgent", SEVERITIES, "critical"),
    )
    section.done()
    if hours.start == hours.end:
        raise section.error("to", "is the same time as `from`")
    return hours


def _heartbeat(section: Section, sinks: Mapping[str, Sink], path: Path) -> Heartbeat:
    file = section.text("file", None)
    heartbeat = Heartbeat(
        every_ns=section.duration("every", "1m"),
        sinks=_known_sinks(section, "sinks", sinks) if "sinks" in section else (),
        file=path.parent / file if file else None,
    )
    section.done()
    if heartbeat.file is not None and BEAT_FILE in heartbeat.sinks:
        raise section.error("sinks", f"names a sink {BEAT_FILE!r}, which is what the file is called here")
    for name in heartbeat.sinks:
        if not hasattr(sinks[name], "beat"):
            raise section.error("sinks", f"names {name}, a kind of sink that has no heartbeat")
    if not heartbeat.sinks and heartbeat.file is None:
        raise section.error("sinks", "is missing; a heartbeat needs `sinks` or a `file`")
    return heartbeat
