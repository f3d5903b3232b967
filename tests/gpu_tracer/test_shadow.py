"""The live shadow says of a read what the audit says of it afterwards, and what becomes of that."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import orjson
import pytest

from kvwitness.gpu_tracer.shadow import Mode, Shadow, Unsound, Watched, tracer_from_environment
from kvwitness.gpu_tracer.tracer import Tracer
from tests.gpu_tracer.support import recorded
from tests.referee.compare import product
from tests.referee.generate import FAULTS, generate

POOL = "eng-1/0/full"
READS = ("foreign-page-read", "unwritten-page-read")
LOSSY = ("seq-hole", "mid-life")
"""Here the record has holes, which the engine itself does not have."""
ELSEWHERE = (
    "double-alloc", "dummy-write-to-live-page", "late-write-after-abort", "source-freed-early", "wrong-source-pages",
    "write-into-shared-page",
)  # fmt: skip
"""Here something lands under the eyes of a reader afterwards, or went wrong in another engine: the audit knows more."""
NAMES = ("healthy", *sorted(set(FAULTS) - set(LOSSY)))
METHODS = {
    "engine.pool": "engine_pool", "page.alloc": "alloc", "page.free": "free", "page.write": "write",
    "page.read": "read", "page.share": "share", "page.publish": "publish", "page.copy": "copy", "page.move": "move",
    "request.received": "request_received",
}  # fmt: skip


def followed(events: Iterable[Mapping[str, Any]]) -> dict[str, list[Unsound]]:
    """What the shadow finds unsound, by request, when it is told these events."""
    shadow, out = Shadow(), defaultdict(list)
    for event in events:
        method = METHODS.get(event["event"])
        if method is None:
            continue
        fields = {name: value for name, value in event.items() if name not in ("t", "seq", "source", "event")}
        if method == "engine_pool":
            fields.setdefault("reason", "start")
        first = [
            fields.pop(name)
            for name in ("pool", "pages", "to_pages")
            if method != "request_received" and name in fields
        ]
        for one in getattr(shadow, method)(*first, **fields) or ():
            out[one.request].append(one)
    return dict(out)


@pytest.mark.parametrize("name", NAMES)
def test_it_agrees_with_the_audit_on_generated_traces(name: str, tmp_path: Path) -> None:
    for seed in range(NAMES.index(name), 2 * len(NAMES), len(NAMES)):
        trace = generate(seed, None if name == "healthy" else name)
        trace.write(str(tmp_path / "trace.jsonl"))
        findings = product(str(tmp_path / "trace.jsonl"))["findings"]
        proven = {f["request"]: f for f in findings if f["rule"] in READS and f["verdict"] in ("leak", "integrity")}
        found = followed(trace.events)
        assert found.keys() <= proven.keys(), f"seed {seed}: only the shadow"
        if name not in ELSEWHERE:
            assert found.keys() == proven.keys(), f"seed {seed}: only the audit"
        leaks = {request for request, several in found.items() if any(one.leak for one in several)}
        audited = {f["request"] for f in findings if f["rule"] in READS and f["verdict"] == "leak"}
        assert leaks <= audited, f"seed {seed}: only the shadow says leak"


@pytest.mark.parametrize(
    ("scrubbed_by", "tok", "unsound"),
    [("r1", None, []), ("r1", [0, 8], []), (None, None, ["r1"]), (None, [0, 8], ["r1"])],
)
def test_zeros_of_the_holder_are_its_content_and_those_of_others_are_nobodys(
    scrubbed_by: str | None, tok: list[int] | None, unsound: list[str], tmp_path: Path
) -> None:
    page = {"pool": POOL, "pages": [5]}
    scrub = page | {"event": "page.write", "op": "scrub", "request": scrubbed_by, "tok": tok}
    told: list[dict[str, Any]] = [
        {"event": "engine.pool", "pool": POOL, "page_tokens": 16, "pages_total": 64, "reason": "start"},
        {"event": "request.received", "request": "r1", "tenant": "t-ash", "prompt_tokens": 16},
        page | {"event": "page.alloc", "request": "r1"},
        page | {"event": "page.write", "request": "r1", "op": "forward"},
        {name: value for name, value in scrub.items() if value is not None},
        page | {"event": "page.read", "request": "r1", "op": "decode"},
    ]
    trace = [{"t": float(n), "source": "eng-1/0", "seq": n, **event} for n, event in enumerate(told)]
    (tmp_path / "trace.jsonl").write_bytes(b"\n".join(map(orjson.dumps, trace)))
    findings = product(str(tmp_path / "trace.jsonl"))["findings"]
    assert [f["request"] for f in findings if f["rule"] in READS] == unsound
    assert list(followed(trace)) == unsound


@pytest.fixture
def rings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KVWITNESS_RING_DIR", str(tmp_path / "rings"))
    return tmp_path / "rings"


def leak(tracer: Watched) -> None:
    tracer.engine_pool(POOL, page_tokens=16, pages_total=64, reserved=[0], reason="start")
    tracer.request_received("r1", "t-ash")
    tracer.alloc(POOL, [5, 6], "r1", tenant="t-ash")
    tracer.write(POOL, [5, 6], "r1", tok=(0, 32), op="forward")
    tracer.read(POOL, [5, 6], "r1", tok=(0, 32), op="decode")
    tracer.free(POOL, [5, 6], "r1", reason="finish")
    tracer.request_received("r2", "t-birch")
    tracer.alloc(POOL, [6], "r2", tenant="t-birch")
    tracer.read(POOL, [6], "r2", tok=(0, 16), op="decode")


def test_without_being_asked_there_is_no_shadow(rings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KVWITNESS_SHADOW", raising=False)
    assert type(tracer_from_environment("eng-1/0", refuses=True)) is Tracer


def test_a_mode_that_is_none_is_said_and_records(
    rings: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("KVWITNESS_SHADOW", "refuze")
    assert type(tracer_from_environment("eng-1/0", refuses=True)) is Tracer
    assert "refuze" in caplog.text


def test_where_nothing_can_be_refused_it_warns(
    rings: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("KVWITNESS_SHADOW", "refuse")
    tracer = tracer_from_environment("eng-1/0")
    assert isinstance(tracer, Watched)
    assert tracer.mode is Mode.WARN
    assert "cannot refuse" in caplog.text


@pytest.mark.parametrize("mode", [Mode.WARN, Mode.REFUSE])
def test_an_unsound_read_is_said_at_once(
    mode: Mode, rings: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("KVWITNESS_SHADOW", mode)
    tracer = tracer_from_environment("eng-1/0", refuses=True)
    assert isinstance(tracer, Watched)
    leak(tracer)
    assert "request r2 reads another tenant's content on page 6" in caplog.text
    assert "r1" not in caplog.text
    (finding,) = [row for row in recorded(rings) if row["event"] == "shadow.finding"]
    assert (finding["request"], finding["tenant"], finding["pages"]) == ("r2", "t-birch", [6])
    taken = tracer.taken()
    assert [(one.request, one.whose, one.how) for one in taken] == (
        [("r2", "t-ash", "unwritten")] if mode is Mode.REFUSE else []
    )
    assert tracer.taken() == []


def test_a_shadow_that_fails_is_given_up_and_recording_goes_on(rings: Path, caplog: pytest.LogCaptureFixture) -> None:
    tracer = Watched(Tracer(rings, "eng-1/0"), Mode.REFUSE)
    tracer.engine_pool(POOL, page_tokens=16, pages_total=64, reason="start")
    tracer.alloc(POOL, "no pages", "r1")  # type: ignore[arg-type]
    assert tracer.shadow is None
    assert "given up" in caplog.text
    leak(tracer)
    assert tracer.taken() == []
    kinds = [row["event"] for row in recorded(rings)]
    assert kinds.count("page.read") == 2
    assert kinds.count("shadow.finding") == 1
