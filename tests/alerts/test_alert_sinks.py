"""Each sink against a real receiver on loopback."""

from __future__ import annotations

import email
import hashlib
import hmac
import re
import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email import policy
from pathlib import Path
from typing import Any

import pytest
import trustme
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult

from kvwitness.audit.alerts.model import Notice
from kvwitness.audit.alerts.reading import Section
from kvwitness.audit.alerts.sinks import sink_kinds
from kvwitness.audit.alerts.sinks.model import Refused, Sink, Unreachable
from tests.alerts.support import T0_NS, Receiver, receiver


def notice(status: str = "firing", **changes: Any) -> Notice:
    values: dict[str, Any] = {
        "key": "al-0123456789ab/1/1", "alert": "al-0123456789ab", "episode": 1, "version": 1, "status": status,
        "severity": "critical", "previous_severity": None, "verdict": "leak",
        "labels": {"verdict": "leak", "engine": "dec-1"}, "title": "155 requests leaked: dec-1",
        "summary": '155 incidents ]"\\ <!channel>.', "incidents": 155, "new_incidents": 155, "findings": 300,
        "tenants": 25, "rules": ("foreign-page-read",), "sample": ("inc-1", "inc-2"), "first_ns": T0_NS,
        "last_ns": T0_NS + 10**9, "opened_ns": T0_NS + 2 * 10**9, "said_ns": T0_NS + 2 * 10**9,
        "ended_ns": T0_NS + 3 * 10**9 if status == "resolved" else None,
        "runbook": "https://runbooks.example.org/#foreign-page-read", "link": "https://kvwitness.example.org/incidents",
    }  # fmt: skip
    return Notice(**values | changes)


def made(kind: str, **settings: Any) -> Sink:
    section = Section(settings, Path("alerts.toml"), "")
    sink = sink_kinds()[kind].make(section)
    section.done()
    return sink


@pytest.fixture
def web() -> Iterator[Receiver]:
    with receiver() as server:
        yield server


def test_every_sink_that_is_asked_for_is_there() -> None:
    assert set(sink_kinds()) == {
        "alertmanager", "apprise", "email", "jsonfile", "ocsf", "otlp", "pagerduty", "slack", "syslog", "webhook",
    }  # fmt: skip


def test_a_webhook_is_signed_over_time_and_body(web: Receiver) -> None:
    made("webhook", url=f"{web.url}/hook", secret="a secret of sixteen", headers={"X-Own": "1"}).deliver(notice())
    got = web.received[0]
    stamp = got.headers["Kvwitness-Timestamp"]
    wanted = hmac.new(b"a secret of sixteen", stamp.encode() + b"." + got.body, hashlib.sha256).hexdigest()
    assert got.headers["Kvwitness-Signature"] == f"v1={wanted}"
    assert got.headers["Idempotency-Key"] == "al-0123456789ab/1/1"
    assert got.headers["X-Own"] == "1"
    assert (got.path, got.json["counts"]["incidents"], got.json["schema"]) == ("/hook", 155, "kvwitness.alert/1")


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (500, Unreachable),
        (503, Unreachable),
        (429, Unreachable),
        (404, Unreachable),
        (302, Unreachable),
        (400, Refused),
    ],
)
def test_what_a_status_means(web: Receiver, status: int, error: type[Exception]) -> None:
    web.answer = (status, {"Retry-After": "7"}, b"")
    with pytest.raises(error) as caught:
        made("webhook", url=f"{web.url}/secret-path").deliver(notice())
    assert "secret-path" not in str(caught.value)
    assert getattr(caught.value, "after_s", 7) == 7


def test_nobody_listens() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    for kind, settings in (
        ("webhook", {"url": f"http://127.0.0.1:{port}/"}),
        ("syslog", {"host": "127.0.0.1", "port": port, "encryption": "none"}),
        ("email", {"host": "127.0.0.1", "port": port, "encryption": "none", "from": "a@b", "to": "c@d"}),
    ):
        with pytest.raises(Unreachable):
            made(kind, **settings).deliver(notice())


def test_alertmanager_gets_labels_that_stay_and_annotations_that_change(web: Receiver) -> None:
    sink = made("alertmanager", url=web.url, labels={"team": "sec"})
    sink.deliver(notice())
    sink.deliver(notice("updated", incidents=200))
    sink.deliver(notice("resolved"))
    first, second, third = (got.json[0] for got in web.received)
    assert web.received[0].path == "/api/v2/alerts"
    assert first["labels"] == second["labels"] == third["labels"]
    assert first["labels"]["team"] == "sec"
    assert first["startsAt"] == third["startsAt"]
    assert third["endsAt"] == "2026-09-21T14:13:23.000Z"
    assert second["annotations"]["incidents"] == "200"
    sink.deliver(notice("updated", previous_severity="high", said_ns=T0_NS + 4 * 10**9))
    ended = web.received[-1].json[1]
    assert (ended["labels"]["severity"], ended["endsAt"]) == ("high", "2026-09-21T14:13:24.000Z")


def test_pagerduty_events_of_an_episode_find_each_other(web: Receiver) -> None:
    sink = made("pagerduty", url=f"{web.url}/v2/enqueue", routing_key="k")
    for status in ("firing", "updated", "resolved"):
        sink.deliver(notice(status))
    events = [got.json for got in web.received]
    assert [e["event_action"] for e in events] == ["trigger", "trigger", "resolve"]
    assert {e["dedup_key"] for e in events} == {"al-0123456789ab/1"}
    assert events[0]["payload"]["severity"] == "critical"
    assert events[0]["links"][0]["href"].endswith("#foreign-page-read")


def test_who_has_taken_it_up_is_told_where_there_is_a_place_for_it(web: Receiver, tmp_path: Path) -> None:
    mine = notice("updated", acknowledged=155, acknowledged_by=("ada",), assigned_to=("bob",))
    sinks = [made("pagerduty", url=web.url, routing_key="k"), made("alertmanager", url=web.url)]
    for sink in [*sinks, made("slack", url=web.url), made("ocsf", url=web.url), made("webhook", url=web.url)]:
        sink.deliver(mine)
    pager, manager, slack, ocsf, hook = [got.json for got in web.received]
    assert pager["event_action"] == "acknowledge"
    assert manager[0]["annotations"]["acknowledged"] == "155 by ada"
    assert manager[0]["annotations"]["assigned_to"] == "bob"
    assert "Acknowledged by ada. Assigned to bob." in " ".join(str(slack).split("\\n"))
    assert (ocsf["status_id"], ocsf["status"]) == (2, "In Progress")
    assert (hook["acknowledged"], hook["assigned_to"]) == ({"incidents": 155, "by": ["ada"]}, ["bob"])
    sinks[0].deliver(notice("firing", acknowledged=155, acknowledged_by=("ada",)))  # it has to be there first
    assert web.received[-1].json["event_action"] == "trigger"


def test_slack_takes_no_name_for_a_mention(web: Receiver) -> None:
    made("slack", url=web.url).deliver(notice(repeated=True))
    body = web.received[0].body.decode()
    assert "<!channel>" not in body
    assert "&lt;!channel&gt;" in body
    assert "may be a repetition" in body


def test_otlp_log_records_have_the_form_of_opentelemetry(web: Receiver) -> None:
    from google.protobuf import json_format
    from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

    sink = made("otlp", url=f"{web.url}/v1/logs")
    sink.deliver(notice())
    parsed = json_format.ParseDict(web.received[0].json, ExportLogsServiceRequest())
    record = parsed.resource_logs[0].scope_logs[0].log_records[0]
    facts = {a.key: a.value for a in record.attributes}
    assert (record.severity_number, record.event_name) == (21, "kvwitness.alert")
    assert facts["kvwitness.alert.incidents"].int_value == 155
    web.answer = (200, {}, b'{"partialSuccess": {"rejectedLogRecords": "1", "errorMessage": "no"}}')
    with pytest.raises(Refused, match="left out: no"):
        sink.deliver(notice())


def test_ocsf_findings_have_the_form_of_the_schema(web: Receiver, tmp_path: Path) -> None:
    from py_ocsf_models.events.findings.detection_finding import DetectionFinding

    made("ocsf", url=f"{web.url}/").deliver(notice())
    made("ocsf", path=str(tmp_path / "o.jsonl")).deliver(notice("resolved"))
    first = DetectionFinding.model_validate(web.received[0].json)
    last = DetectionFinding.model_validate_json((tmp_path / "o.jsonl").read_text())
    assert [f.type_uid for f in (first, last)] == [200401, 200403]
    assert first.finding_info.uid == last.finding_info.uid == "al-0123456789ab/1"
    assert first.severity_id.value == 5


def test_a_file_of_json_lines_heals_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "alerts.jsonl"
    sink = made("jsonfile", path=str(path))
    sink.deliver(notice())
    path.write_bytes(path.read_bytes()[:-20])
    sink.deliver(notice())
    lines = path.read_text().splitlines()
    assert len(lines) == 2
    assert '"episode":1' in lines[1]
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(Unreachable, match="Is a directory"):
        made("jsonfile", path=str(tmp_path)).deliver(notice())


@pytest.mark.filterwarnings("ignore:.*imghdr.*:DeprecationWarning")
def test_apprise_brings_it_to_any_service_that_it_knows(web: Receiver) -> None:
    sink = made("apprise", url=web.url.replace("http://", "json://"))
    sink.deliver(notice())
    assert web.received[0].json["title"] == "[FIRING] critical: 155 requests leaked: dec-1"
    web.answer = (500, {}, b"")
    with pytest.raises(Unreachable):
        sink.deliver(notice())


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, trustme.CA]:
    ca = trustme.CA()
    path = tmp_path_factory.mktemp("ca") / "ca.pem"
    ca.cert_pem.write_to_path(str(path))
    return path, ca


def server_side(ca: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    ca.issue_cert("localhost").configure_cert(context)
    return context


class _Mailbox:
    def __init__(self) -> None:
        self.messages: list[email.message.EmailMessage] = []
        self.answer = "250 OK"

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        if self.answer.startswith("250"):
            self.messages.append(email.message_from_bytes(envelope.content, policy=policy.default))
        return self.answer


@contextmanager
def mail_server(ca: trustme.CA) -> Iterator[tuple[_Mailbox, int]]:
    box = _Mailbox()

    def log_in(server: Any, session: Any, envelope: Any, mechanism: str, data: Any) -> AuthResult:
        known = (data.login, data.password) == (b"alerts", b"open sesame")
        return AuthResult(success=known, handled=False)

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    controller = Controller(
        box, hostname="localhost", port=port, tls_context=server_side(ca), require_starttls=True,
        authenticator=log_in, auth_required=True,
    )  # fmt: skip
    controller.start()
    try:
        yield box, port
    finally:
        controller.stop()


def test_mail_goes_out_encrypted_in_one_thread_per_episode(authority: tuple[Path, trustme.CA]) -> None:
    path, ca = authority
    with mail_server(ca) as (box, port):
        settings = {
            "host": "localhost", "port": port, "from": "kvwitness@example.org", "to": ["sec@example.org"],
            "user": "alerts", "ca_file": str(path),
        }  # fmt: skip
        sink = made("email", **settings, password="open sesame")
        sink.deliver(notice())
        sink.deliver(notice("resolved", key="al-0123456789ab/1/2", version=2))
        first, last = box.messages
        assert first["Subject"] == "[FIRING] critical: 155 requests leaked: dec-1"
        assert last["References"] == first["Message-ID"] != last["Message-ID"]
        assert "https://runbooks.example.org/#foreign-page-read" in first.get_content()
        box.answer = "451 later"
        with pytest.raises(Unreachable, match="451"):
            sink.deliver(notice())
        box.answer = "554 never"
        with pytest.raises(Refused, match="554"):
            sink.deliver(notice())
        with pytest.raises(Unreachable, match="535"):
            made("email", **settings, password="wrong").deliver(notice())
        del settings["ca_file"]
        with pytest.raises(Unreachable):  # a certificate that nobody vouches for
            made("email", **settings, password="open sesame").deliver(notice())


@contextmanager
def syslog_server(
    context: ssl.SSLContext, farewell: str = "tls"
) -> Iterator[tuple[list[bytes], int, threading.Thread]]:
    """Takes one message. `farewell`: `tls`, `tcp` (it ends without one in TLS), `reset` (nothing is read)."""
    got: list[bytes] = []
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        plain, _ = listening.accept()
        with context.wrap_socket(plain, server_side=True) as secure:
            if farewell == "reset":
                secure.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                return
            data = b""
            while piece := secure.recv(65536):
                data += piece
            got.append(data)
            if farewell == "tls":
                secure.unwrap()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield got, listening.getsockname()[1], thread
    finally:
        listening.close()


def test_syslog_over_tls_is_a_counted_frame_of_rfc_5424(authority: tuple[Path, trustme.CA]) -> None:
    path, ca = authority
    with syslog_server(server_side(ca)) as (got, port, thread):
        made("syslog", host="localhost", port=port, ca_file=str(path)).deliver(notice())
        thread.join(10)
    size, _, told = got[0].partition(b" ")
    assert int(size) == len(told)
    form = re.compile(
        rb"<(\d+)>1 (\S+Z) (\S+) kvwitness (\d+) firing "
        rb"\[kvwitness@32473((?: [a-z]+=\"(?:[^\"\\\]]|\\.)*\")+)\] \xef\xbb\xbf(.+)"
    )
    match = form.fullmatch(told)
    assert match is not None
    assert (match[1], match[2]) == (b"106", b"2026-09-21T14:13:22.000Z")
    assert b'incidents="155"' in match[5]


def test_a_receiver_of_syslog_that_ends_without_a_farewell_has_the_message(authority: tuple[Path, trustme.CA]) -> None:
    path, ca = authority
    with syslog_server(server_side(ca), "tcp") as (got, port, thread):
        made("syslog", host="localhost", port=port, ca_file=str(path)).deliver(notice())
        thread.join(10)
    assert len(got) == 1
    with syslog_server(server_side(ca), "reset") as (got, port, _), pytest.raises(Unreachable):
        made("syslog", host="localhost", port=port, ca_file=str(path)).deliver(notice())
    assert got == []
