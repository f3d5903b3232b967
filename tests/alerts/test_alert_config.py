"""A configuration means what it says, or says where it is wrong."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import pytest

from kvwitness.audit.alerts.cadence import Cron, Every, cron, duration_ns, in_words
from kvwitness.audit.alerts.config import accepted_risks, load
from kvwitness.audit.alerts.policy import not_before
from kvwitness.audit.alerts.reading import ConfigError
from tests.alerts.test_alert_sinks import notice

HEAD = 'runbook = "https://runbooks.example.org/#{rule}"\n'
SINK = '[sinks.a]\ntype = "jsonfile"\npath = "x"\n'
SILENCE = '[[silence]]\nid = "x"\nowner = "me"\nreason = "r"\nmatch = {engine = "e"}\n'
HOOK = '[sinks.h]\ntype = "webhook"\nurl = "http://hook/"\n'
MAIL = '[sinks.m]\ntype = "email"\nhost = "h"\nfrom = "a@b"\nto = "c@d"\n'
ROUTE = '[[route]]\nname = "all"\nsinks = ["a"]\n'


def told(tmp_path: Path, text: str) -> str:
    file = tmp_path / "alerts.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(file)
    return str(caught.value).replace(str(tmp_path) + "/", "")


def test_the_example_is_right(tmp_path: Path) -> None:
    text = (files("kvwitness.audit.alerts") / "example.toml").read_text()
    file = tmp_path / "a.toml"
    file.write_text(text)
    assert list(load(file).sinks) == ["journal"]


def test_everything_in_the_example_that_is_commented_out_is_right_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVWITNESS_PAGERDUTY_KEY", "k")
    (tmp_path / "rules.yaml").write_text("prompt-length-shift:\n  every: 6h\n")
    text = (files("kvwitness.audit.alerts") / "example.toml").read_text()
    lines = [
        line.removeprefix("#").removeprefix(" ") if "=" in line or "[" in line else line for line in text.split("\n")
    ]
    (tmp_path / "a.toml").write_text("\n".join(lines))
    config = load(tmp_path / "a.toml")
    assert set(config.sinks) == {"journal", "pager", "duty"}
    assert config.rule("near-limit-successes").params == {"min_hits": 20}
    assert config.cadence_of("prompt-length-shift") == Every(duration_ns("6h"))
    assert [a.accepted_by for a in config.acceptances] == ["Head of Platform"]
    assert config.quiet[0].urgent == "high"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "alerts.toml, runbook is missing"),
        ('runbook = "not an address"', "alerts.toml, line 1: runbook has to be an address that begins with http"),
        (HEAD + "[schedule]\nevery = 5\n", "alerts.toml, line 3: schedule.every is 5; it has to be a duration"),
        (HEAD + '[schedule]\nevery = "5 m"\n', "line 3: schedule.every is '5 m'; it has to be a duration"),
        (HEAD + '[schedule]\nevry = "5m"\n', "line 3: schedule.evry is not known here.\nDid you mean every?"),
        (HEAD + '[schedule]\nevery = "5m"\ncron = "* * * * *"\n', "line 4: schedule.cron stands beside `every`"),
        (HEAD + '[schedule]\ncron = "61 * * * *"\n', "line 3: schedule.cron is wrong: '61 * * * *' is no cron"),
        (HEAD + '[rules.forein-page-read]\nseverity = "low"\n', "line 2: rules.forein-page-read is no rule"),
        (HEAD + '[rules.canary-leak]\nseverity = "loud"\n', "line 3: rules.canary-leak.severity is 'loud'"),
        (HEAD + "[rules.near-limit-successes]\nmin_hits = 2.5\n", "min_hits is 2.5; it has to be a whole number"),
        (HEAD + "[rules.near-limit-successes]\nmin_hitss = 2\n", "Did you mean min_hits?"),
        (HEAD + SINK, "alerts.toml, route is missing: there are sinks"),
        (HEAD + SINK + ROUTE.replace('"a"', '"b"'), "line 7: route.sinks holds 'b'; known are a"),
        (HEAD + SINK + ROUTE + 'match = {rule = "leak"}\n', "holds 'leak', which fits no rule"),
        (HEAD + SINK + ROUTE + 'match = {engine = "e"}\n', "ends with a route that has conditions"),
        (HEAD + '[sinks.a]\ntype = "pagerduty"\n', "sinks.a.routing_key is missing"),
        (HEAD + '[sinks.a]\ntype = "pagerduty"\nrouting_key = {env = "NO_SUCH"}\n', "NO_SUCH, which is not set"),
        (HEAD + '[sinks.a]\ntype = "pigeon"\n', "line 3: sinks.a.type is 'pigeon'; it has to be one of"),
        (HEAD + '[[acceptance]]\nid = "x"\nmatch = {rule = "capacity-drift"}\n', "acceptance.accepted_by is missing"),
        (
            HEAD + '[[silence]]\nid = "x"\nowner = "me"\nreason = "r"\nuntil = 2027-01-01\n',
            "silence.match has no condition",
        ),
        (HEAD + '[[silence]]\nid = "x"\nmatch = {engine = "e"}\nowner = "me"\nuntil = "soon"\n', "a date or a time"),
        (HEAD + 'timezone = "Mars/Olympus"\n', "line 2: timezone is 'Mars/Olympus', which is no time zone"),
        (HEAD + '[heartbeat]\nevery = "1m"\n', "heartbeat.sinks is missing; a heartbeat needs"),
        (HEAD + SINK + ROUTE + '[heartbeat]\nsinks = ["a"]\n', "names a, a kind of sink that has no heartbeat"),
        ('runbok = "https://r.example/"\n', "runbook is missing; it has to be a text, {env"),
        ('runbok = "https://r.example/"\n', "There is runbok."),
        (HEAD + SINK + ROUTE.replace('["a"]', "[]"), "line 7: route.sinks is empty"),
        (HEAD + SINK + ROUTE + ROUTE.replace("all", "b"), "line 9: route.name is 'b', which is never asked: 'all'"),
        (
            HEAD + SINK + ROUTE.replace("name", 'match = {engine = "e"}\nname') + ROUTE + 'match = {verdct = "leak"}\n',
            "line 12: route.match.verdct is not known here.\nDid you mean verdict?",
        ),
        (HEAD + SINK.replace("path", "paht"), "line 2: sinks.a.path is missing; it has to be a text.\nThere is paht."),
        (HEAD + "[alerts]\nstorm = inf\n", "alerts.storm is inf; it has to be 1 or more"),
        (HEAD + "[alerts]\nstorm = 2.5\n", "alerts.storm is 2.5; it has to be a whole number"),
        (HEAD + "[alerts]\ngroup_by = []\n", "alerts.group_by is empty"),
        (HEAD + '[alerts]\nresolve_after = "999999d"\n', "has to be a hundred years at most"),
        (HEAD + '[schedule]\ncron = "0 0 30 2 *"\n', "'0 0 30 2 *' is no day of any year"),
        (HEAD + f"{SILENCE}from = 2027-01-02\nuntil = 2027-01-01\n", "silence.until is not later than `from`"),
        (HEAD + f"{SILENCE}until = 9999-12-31\n", "line 7: silence.until is 9999-12-31; it has to lie in the years"),
        (HEAD + '[[quiet_hours]]\nfrom = "22:00+02:00"\nto = "07:00"\n', "has to be a time without offset"),
        (HEAD + HOOK + 'ca_file = "none.pem"\n', "line 5: sinks.h.ca_file names none.pem, which cannot be read"),
        (HEAD + HOOK + 'ca_file = "alerts.toml"\n', "ca_file names alerts.toml, which holds no certificates"),
        (HEAD + HOOK.replace("//hook", "//hook:99999"), "line 4: sinks.h.url has to be an address"),
        (HEAD + HOOK + 'headers = {Authorization = "a\\nb"}\n', "line 5: sinks.h.headers.Authorization has to be"),
        (HEAD + MAIL + 'ca_file = "none.pem"\n', "sinks.m.ca_file names none.pem, which cannot be read"),
        (HEAD + MAIL + "port = 25.5\n", "sinks.m.port is 25.5; it has to be a whole number"),
        (HEAD + 'rule_files = ["none.yaml"]\n', "none.yaml, which cannot be read"),
        ("runbook = ", "alerts.toml is no TOML"),
    ],
)
def test_an_error_names_place_key_and_remedy(tmp_path: Path, text: str, message: str) -> None:
    assert message in told(tmp_path, text)


def test_a_secret_never_stands_in_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOK", "ftp://user:hush@example.org")
    text = HEAD + '[sinks.a]\ntype = "slack"\nurl = {env = "HOOK"}\n'
    assert "hush" not in told(tmp_path, text)
    monkeypatch.setenv("TOKEN", "Bearer hush\nhush")
    assert "hush" not in told(tmp_path, HEAD + HOOK + 'headers = {Authorization = {env = "TOKEN"}}\n')


def test_what_editors_and_secret_stores_add_does_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mark at the beginning, a line end behind a key; a file that is a folder is told."""
    monkeypatch.setenv("HOOK", "https://hook.example.org/\n")
    text = HEAD + '[sinks.a]\ntype = "slack"\nurl = {env = "HOOK"}\n' + ROUTE
    (tmp_path / "a.toml").write_text("\ufeff" + text)
    assert list(load(tmp_path / "a.toml").sinks) == ["a"]
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load(tmp_path)


def test_relative_paths_begin_where_the_configuration_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "a.toml").write_text(HEAD + SINK + ROUTE)
    monkeypatch.chdir(tmp_path)
    load(Path("etc/a.toml")).sinks["a"].deliver(notice())
    assert (tmp_path / "etc" / "x").exists()


def test_settings_in_yaml_and_over_them_those_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text("canary-leak:\n  severity: low\nlate-read:\n  enabled: false\n")
    (tmp_path / "a.toml").write_text(HEAD + 'rule_files = ["rules.yaml"]\n[rules.canary-leak]\nseverity = "high"\n')
    config = load(tmp_path / "a.toml")
    assert config.rule("canary-leak").severity == "high"
    assert not config.rule("late-read").enabled
    (tmp_path / "rules.yaml").write_text("canary-leak:\n  severity: loud\n")
    with pytest.raises(ConfigError, match=r"rules\.yaml, line 2: canary-leak\.severity is 'loud'"):
        load(tmp_path / "a.toml")


def test_durations_there_and_back() -> None:
    assert [in_words(duration_ns(text)) for text in ("90s", "36h", "1h30m", "2w")] == ["1m30s", "1d12h", "1h30m", "14d"]


def test_cron_in_a_time_zone_over_the_change_of_clocks() -> None:
    morning = cron("0 6 * * *", "Europe/Berlin")
    before = 1_792_800_000_000_000_000  # 2026-10-24T00:00:00Z; clocks go back on the 25th
    first = morning.next_after(before)
    assert [first - before, morning.next_after(first) - first] == [duration_ns("4h"), duration_ns("25h")]


def test_times_of_a_cron_expression_that_passed_unused_count_as_one() -> None:
    hourly = Cron("0 * * * *")
    start = 1_792_800_000_000_000_000
    assert not hourly.due(start, start + duration_ns("59m"))
    assert hourly.due(start, start + duration_ns("5h"))
    assert not hourly.due(start + duration_ns("5h"), start + duration_ns("5h30m"))


def test_quiet_hours_over_midnight_begin_on_their_day(tmp_path: Path) -> None:
    text = HEAD + '[[quiet_hours]]\ndays = ["fri"]\nfrom = "22:00"\nto = "07:00"\ntimezone = "Europe/Berlin"\n'
    (tmp_path / "a.toml").write_text(text)
    config = load(tmp_path / "a.toml")
    friday_night = 1_792_792_800_000_000_000 + duration_ns("2h")  # Saturday, 24 October 2026, 02:00 in Berlin
    assert not_before(config, "high", friday_night) - friday_night == duration_ns("5h")
    assert not_before(config, "critical", friday_night) == friday_night
    assert not_before(config, "high", friday_night + duration_ns("24h")) == friday_night + duration_ns("24h")


def test_risks_are_read_without_the_keys_of_sinks(tmp_path: Path) -> None:
    sink = '[sinks.a]\ntype = "slack"\nurl = {env = "NO_SUCH"}\n'
    risk = 'id = "r"\nmatch = {rule = "capacity-drift"}\naccepted_by = "CISO"\nreason = "known"\nuntil = 2027-01-01\n'
    (tmp_path / "a.toml").write_text(f"{HEAD}{sink}{ROUTE}[[acceptance]]\n{risk}")
    assert [(a.id, a.accepted_by) for a in accepted_risks(tmp_path / "a.toml")] == [("r", "CISO")]
    with pytest.raises(ConfigError, match="NO_SUCH"):
        load(tmp_path / "a.toml")
