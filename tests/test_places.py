"""The proving events of a finding are told apart by where they arrived, also where two records use the same numbers."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from kvwitness.audit.api import judge_file
from kvwitness.audit.runs import audit_store
from kvwitness.audit.store import Store
from kvwitness.audit.trace import TraceReader
from tests.alerts.support import T0, over_limit, put
from tests.cli.conftest import CASES

CASE = CASES / "k01-oversize-stub-handoff.jsonl"


def proofs(store: Store) -> pl.DataFrame:
    """rule, request, source, seq as findings name them; and own_source, own_seq of the event at that place."""
    with store.connect() as con:
        return con.sql(
            "SELECT rule, f.request, p.s.source, p.s.seq, e.source AS own_source, e.seq AS own_seq, e.ingest "
            "FROM findings AS f, LATERAL (SELECT unnest(seqs) AS s, unnest(places) AS q) AS p "
            "JOIN events AS e ON e.ingest = p.q.ingest AND e.ingest_row = p.q.ingest_row"
        ).pl()


def test_every_proof_is_at_its_place_after_each_audit(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "s")
    put(store, over_limit(0, 3))
    audit_store(store)
    reader = TraceReader(CASE)
    store.import_batches(reader, sha256=lambda: reader.report.sha256, name=CASE.name)  # long before the others
    run = audit_store(store)
    found = proofs(store)
    assert len(found) == run.judgement.findings["seqs"].list.len().sum() > 0
    assert found["ingest"].n_unique() == 2
    assert found.filter(
        (pl.col("source") != pl.col("own_source")) | pl.col("seq").ne_missing(pl.col("own_seq"))
    ).is_empty()


def test_records_with_the_same_names_and_numbers_are_told_apart(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "s")
    put(store, over_limit(0, 2))
    put(store, over_limit(0, 2, t0=T0 + 86_400))  # another deployment that calls everything the same
    audit_store(store)
    found = proofs(store)
    assert found.select("ingest").n_unique() == 2
    assert len(found.select("source", "seq").unique()) < len(found.select("ingest", "source", "seq").unique())


def test_a_trace_without_a_store_has_no_places() -> None:
    judgement, _, _ = judge_file(CASE)
    assert judgement.findings["places"].explode().struct.field("ingest").null_count() > 0
