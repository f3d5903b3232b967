"""`kvwitness explain`, `request` and `page`: the story, its evidence, and SQL that runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvwitness.audit.cli.app import run
from kvwitness.audit.store import Store
from tests.cli.conftest import CASES, RECORDED, Command

SEVERAL = [
    "k02-decode-abort-late-write",
    "k03-lease-outlived-by-get",
    "k08-tainted-prefix-served-on",
    "k09-prefix-probing",
    "u02-trace-begins-mid-life",
    "u05-dropped-events-hide-a-release",
]


def test_story_names_who_what_whose_and_what_is_not_known(command: Command, recorded: Path) -> None:
    said = command("explain", "r1017", "--store", recorded, "--format", "table")
    assert said.status == 0
    for fact in [
        "Request r1017 of tenant t-cedar read content of 2 other tenants: t-ash and t-birch.",
        "received by gateway on 2026-11-30 17:47:25.592Z: a prompt of 600 tokens",
        "pf-1 enforced an input limit of 505 tokens and dec-1 one of 1,193; 2,048 were advertised",
        "pf-1/0 refused it with status 400 (input_too_long)",
        "transfer x-0017 of 1 token to 1 page of dec-1/0/full, where 38 pages had been made ready",
        "dec-1/0 read positions 0-608 on 39 pages (1-39) of dec-1/0/full",
        "dec-1/0 answered 200 (finish reason length), for 600 prompt tokens and 10 completion tokens",
        "357 positions of 23 pages",
        "14 pages (17-30) held content of t-birch, written for r1014",
        "a record holds neither prompts nor outputs",
    ]:
        assert fact in said.words


def test_incident_is_found_by_the_beginning_of_its_id(command: Command, recorded: Path) -> None:
    whole = command("explain", "inc-777ce44b2940", "--store", recorded).document
    for name in ("inc-777ce", "777ce44b", "r1017"):
        assert command("explain", name, "--store", recorded).document == whole


@pytest.mark.parametrize(("name", "told"), [("inc-", "4 incidents begin with"), ("nothing", "no incident")])
def test_incident_that_is_not_one(command: Command, recorded: Path, name: str, told: str) -> None:
    said = command("explain", name, "--store", recorded)
    assert (said.status, said.out) == (2, "")
    assert told in said.err


def test_request_without_incident_is_explained_too(command: Command, recorded: Path) -> None:
    document = command("explain", "r1019", "--store", recorded).document
    assert (document["incident"], document["verdict"], document["findings"]) == (None, "clean", [])
    assert document["story"][0].startswith("Nothing was found against request r1019 of tenant t-ash")
    assert any("recorded its abort" in paragraph for paragraph in document["story"])


def test_a_trace_is_explained_as_its_store_is(command: Command, recorded: Path) -> None:
    from_store = command("explain", "r1017", "--store", recorded).document
    assert command("explain", "r1017", "--trace", RECORDED).document == from_store


def test_evidence_is_in_order_and_names_the_rules(command: Command, recorded: Path) -> None:
    evidence = command("explain", "r1017", "--store", recorded).document["evidence"]
    times = [row["time_ns"] for row in evidence]
    assert times == sorted(times)
    read = next(row for row in evidence if (row["source"], row["seq"]) == ("dec-1/0", 919))
    assert (read["event"], read["pages"], read["tok"]) == ("page.read decode", [[1, 38]], [0, 601])
    assert "unwritten-page-read" in read["rules"]
    found = command("explain", "r1017", "--store", recorded).document["findings"]
    assert [f["pages"] for f in found if f["rule"] == "unwritten-page-read"] == [[[16, 38]], [[1, 16]]]
    victim = next(row for row in evidence if row["request"] == "r1014")
    assert victim["shows"] == "content of t-birch"


def test_sql_brings_up_the_proof_and_the_victims(command: Command, recorded: Path) -> None:
    document = command("explain", "r1017", "--store", recorded).document
    proofs = {(row["source"], row["seq"]) for row in document["evidence"] if row["rules"]}
    with Store.open(recorded).connect() as connection:
        events, writers = (connection.sql(query["statement"]).pl() for query in document["sql"])
    assert set(events.select("source", "seq").iter_rows()) == proofs
    # Page 38, too, held content of r1015, below what r1017 had just written there itself.
    assert writers.drop("pool").rows() == [
        ("r1010", "t-ash", 1, 16, 16, [16]),
        ("r1014", "t-birch", 14, 17, 30, [*range(17, 31)]),
        ("r1011", "t-ash", 1, 30, 30, [30]),
        ("r1015", "t-ash", 8, 31, 38, [*range(31, 39)]),
    ]


@pytest.mark.parametrize("case", SEVERAL)
def test_every_incident_has_a_story_and_sql_that_runs(command: Command, tmp_path: Path, case: str) -> None:
    store = tmp_path / "store"
    command("import", CASES / f"{case}.jsonl", "--store", store)
    command("audit", "--store", store)
    incidents = command("incidents", "--store", store).rows
    assert incidents
    with Store.open(store).connect() as connection:
        for incident in incidents:
            document = command("explain", incident["incident"], "--store", store).document
            assert document["story"]
            assert document["evidence"]
            for query in document["sql"]:
                assert len(connection.sql(query["statement"]).pl()), query["question"]


def test_names_with_quotes_do_not_break_the_sql(command: Command, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    text = (CASES / "k02-decode-abort-late-write.jsonl").read_text()
    trace.write_text(text.replace("r2002", "r'2--\\\";"))
    store = tmp_path / "store"
    command("import", trace, "--store", store)
    command("audit", "--store", store)
    document = command("explain", "r'2--\";", "--store", store).document
    assert document["verdict"] == "leak"
    with Store.open(store).connect() as connection:
        for query in document["sql"]:
            assert len(connection.sql(query["statement"]).pl())


def test_request_shows_verdict_pages_and_all_sources(command: Command, recorded: Path) -> None:
    document = command("request", "r1017", "--store", recorded).document
    assert (document["verdict"], document["incident"]) == ("leak", "inc-777ce44b2940")
    assert {row["source"] for row in document["timeline"]} == {"gateway", "pf-1/0", "dec-1/0"}
    held = [(row["pool"], row["pages"], row["released"]) for row in document["pages"]]
    assert held == [
        ("dec-1/0/full", [[1, 38]], "finish"),
        ("pf-1/0/full", [30], "finish"),
        ("dec-1/0/full", [39], "finish"),
    ]


def test_requests_and_pages_can_be_looked_up_before_an_audit(command: Command, tmp_path: Path) -> None:
    store = tmp_path / "store"
    command("import", RECORDED, "--store", store)
    said = command("request", "r1017", "--store", store)
    assert (said.status, said.document["verdict"]) == (0, None)
    assert said.document["timeline"]
    assert "not audited yet" in said.err
    assert "not judged yet" in command("request", "r1017", "--store", store, "--format", "table").out
    history = command("page", "dec-1/0/full/17", "--store", store).rows
    assert history[0]["tenant"] == "t-birch"


def test_unknown_request(command: Command, recorded: Path) -> None:
    said = command("request", "r1", "--store", recorded)
    assert (said.status, said.out) == (2, "")
    assert "'r1'" in said.err


def history(command: Command, store: Path, *options: str) -> list[dict[str, Any]]:
    return command("page", "dec-1/0/full/17", "--store", store, *options).rows


def test_page_history_follows_generations_and_marks_findings(command: Command, recorded: Path) -> None:
    rows = history(command, recorded)
    holders = {row["generation"]: (row["who"], row["tenant"]) for row in rows if row["event"] == "page.alloc"}
    assert holders[4] == ("r1014", "t-birch")
    assert holders[5] == ("r1017", "t-cedar")
    left = next(row for row in rows if (row["source"], row["seq"]) == ("pf-1/0", 569))
    assert (left["generation"], left["positions"]) == (4, [0, 16])
    read = next(row for row in rows if (row["source"], row["seq"]) == ("dec-1/0", 919))
    assert (read["generation"], read["positions"]) == (5, [256, 272])
    assert left["findings"] == ["leak of r1017: unwritten-page-read"]
    assert read["findings"][0] == "leak of r1017: unwritten-page-read"


def test_one_generation_of_a_page(command: Command, recorded: Path) -> None:
    rows = history(command, recorded, "--generation", "6")
    assert [(row["event"], row["who"]) for row in rows] == [("page.alloc", "r1019"), ("page.free", "r1019")]


@pytest.mark.parametrize(
    ("page", "told"),
    [
        ("dec-1/0/full/9999", "76 pages, 0 to 75"),
        ("dec-2/0/full/1", "dec-1/0/full"),
        ("seventeen", "dec-1/0/full/17"),
    ],
)
def test_page_that_is_not_on_record(command: Command, recorded: Path, page: str, told: str) -> None:
    said = command("page", page, "--store", recorded)
    assert (said.status, said.out) == (2, "")
    assert told in said.err


def test_long_page_history_is_told_by_generations(
    command: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines: list[str] = []
    for n in range(40):
        for event in ("page.alloc", "page.free"):
            seq = len(lines) + 1
            lines.append(
                f'{{"t":{seq},"seq":{seq},"source":"e/0","event":"{event}","pool":"e/0/kv","pages":[3],'
                f'"request":"r{n}","tenant":"t-a"}}'
            )
    trace = tmp_path / "trace.jsonl"
    trace.write_text("\n".join(lines))
    assert run(["page", "e/0/kv/3", "--trace", str(trace), "--format", "table"]) == 0
    captured = capsys.readouterr()
    assert len(captured.out.splitlines()) == 40 + 3
    assert "--generation N" in captured.err
