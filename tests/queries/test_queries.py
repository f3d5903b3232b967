"""Every incident query gives the known answer, however it is asked; each is "none" at least once."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest

import kvwitness.audit
from kvwitness.audit.asking import bind, connect
from kvwitness.audit.errors import KvwitnessError
from kvwitness.audit.queries import Query, find, parse, queries
from kvwitness.audit.store import Store, views
from tests.queries.conftest import Stores
from tests.queries.known import HEALTHY, KNOWN, RECORDED, STUB, Known
from tests.queries.support import Question, bare, by_macro, by_variables, shell

NONE = {"customer_exposure", "request_timeline"}
"""Queries with an answer for whatever is on record: a customer is told every count, also where it is 0."""


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: known.name)
def test_answer_from_python(stores: Stores, known: Known) -> None:
    frame = kvwitness.audit.query(known.query, store=stores(known.case), **known.parameters)
    picked = [{k: row[k] for k in want} for row, want in zip(frame.to_dicts(), known.rows, strict=False)]
    assert (picked, len(frame)) == (known.rows, len(known.rows))


def test_each_query_is_known_on_two_traces_one_of_them_without_an_answer() -> None:
    for name in queries():
        about = [known for known in KNOWN if known.query == name]
        assert name in NONE or ([k for k in about if k.rows] and [k for k in about if not k.rows]), name


def answers(store: Store, query: Query, parameters: dict[str, object]) -> str:
    with connect(store) as connection:
        bind(connection, query, parameters)
        return repr(connection.execute(query.select).fetchall())


CASES = sorted({known.case for known in KNOWN})


def assert_alike(python: str, store: Store, case: str) -> None:
    """A bare DuckDB answers what is known of a case as this program does, by the file and by the macro."""
    about = [known for known in KNOWN if known.case == case]
    questions, expected = [], []
    for known in about:
        query = find(known.query)
        questions += [by_variables(query, known.parameters), by_macro(query, known.parameters)]
        expected += [answers(store, query, known.parameters)] * 2
    assert bare(python, store.path, questions) == expected


@pytest.mark.parametrize("case", CASES)
def test_a_bare_duckdb_answers_alike(stores: Stores, case: str) -> None:
    assert_alike(sys.executable, stores(case), case)


@pytest.mark.versions
@pytest.mark.parametrize("case", CASES)
def test_other_versions_of_duckdb_answer_alike(stores: Stores, other_duckdbs: list[str], case: str) -> None:
    for python in other_duckdbs:
        assert_alike(python, stores(case), case)


@pytest.mark.versions
def test_other_versions_of_duckdb_read_every_view(stores: Stores, other_duckdbs: list[str]) -> None:
    store = stores(STUB).path
    names = [view.name for view in (*views.DERIVED, *views.RESULTS)]
    questions: list[Question] = [(f"SELECT count(columns(*)) FROM {name}", {}) for name in names]
    here = bare(sys.executable, store, questions)
    for python in other_duckdbs:
        assert bare(python, store, questions) == here


@pytest.mark.versions
def test_the_shell_binary_answers_alike(stores: Stores, duckdb_shell: str) -> None:
    for known in (known for known in KNOWN if known.case in (STUB, HEALTHY)):
        given = ", ".join(f"{name} := {value!r}" for name, value in known.parameters.items())
        said = shell(duckdb_shell, stores(known.case).path, f"SELECT count(*) AS n FROM {known.query}({given})")
        assert json.loads(said) == [{"n": len(known.rows)}], known.name


def test_the_shell_shows_what_views_and_queries_mean(stores: Stores) -> None:
    with stores(STUB).connect() as connection:
        told = dict(
            connection.execute(
                "SELECT function_name, comment FROM duckdb_functions() WHERE function_type = 'table_macro' "
                "AND database_name = 'store'"
            ).fetchall()
        )
    assert {name: told[name] for name in queries()} == {q.name: q.question for q in queries().values()}


def test_times_are_text_or_datetimes_of_any_zone(stores: Stores) -> None:
    later = datetime(2026, 11, 30, 17, 48, tzinfo=UTC)
    for since in (later, later.replace(tzinfo=None), "2026-11-30T17:48:00Z"):
        frame = kvwitness.audit.query("over_limit_successes", store=stores(RECORDED), since=since)
        assert frame["request"].to_list() == ["r1020"]


@pytest.mark.parametrize("name", ["near_limit", "over_limit_successes", "foreign_decodes", "unobserved"])
def test_times_beyond_what_a_record_can_hold_are_no_bounds(stores: Stores, name: str) -> None:
    whole = kvwitness.audit.query(name, store=stores(STUB))
    assert len(whole) > 0
    for since, until in (("-infinity", "infinity"), ("0001-01-01", "9999-12-31"), (datetime.min, datetime.max)):
        assert kvwitness.audit.query(name, store=stores(STUB), since=since, until=until).equals(whole)


def test_the_default_store_comes_from_the_environment(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVWITNESS_STORE", str(stores(STUB).path))
    assert len(kvwitness.audit.query("over-limit-successes")) == 1


@pytest.mark.parametrize(
    ("name", "parameters", "told"),
    [
        ("over_limit", {}, "Did you mean .*over_limit_successes"),
        ("could_have_read", {}, "needs request_id"),
        ("could_have_read", {"request_id": "r9"}, "No event names the request 'r9'"),
        ("readers_of_tenant", {"tenant_id": "t-x"}, "No event names the tenant 't-x'"),
        ("customer_exposure", {"tenant_id": "t-x"}, "No event names the tenant 't-x'"),
        ("page_touches", {"pool_name": "p", "page_id": 1}, "No event names the pool 'p'"),
        ("page_touches", {"pool_name": "p", "page_id": "one"}, "page_id = 'one' is no BIGINT"),
        ("page_touches", {"pool_name": "p", "page_id": "1.5"}, "page_id = '1.5' is no BIGINT"),
        ("page_touches", {"pool_name": "p", "page_id": 1.5}, "page_id = 1.5 is no BIGINT"),
        ("near_limit", {"near_share": "nan"}, "near_share = 'nan' is no DOUBLE"),
        ("near_limit", {"since": "2027-01-01", "until": "2026-01-01"}, "window is empty: since = 2027-01-01, until"),
        ("near_limit", {"share": 0.5}, "has no parameter share"),
        ("near_limit", {"since": "yesterday"}, "since = 'yesterday' is no TIMESTAMP"),
    ],
)
def test_wrong_questions_say_what_is_wrong(stores: Stores, name: str, parameters: dict[str, object], told: str) -> None:
    with pytest.raises(KvwitnessError, match=told):
        kvwitness.audit.query(name, store=stores(STUB), **parameters)


def test_values_are_never_read_as_sql(stores: Stores) -> None:
    odd = "r1003' OR 'a' = 'a"
    with pytest.raises(KvwitnessError, match="No event names"):
        kvwitness.audit.query("request_timeline", store=stores(STUB), request_id=odd)


def test_before_an_audit_nothing_looks_like_none(fresh: Store) -> None:
    assert len(kvwitness.audit.query("over_limit_successes", store=fresh)) == 1
    for name in ("tenants_to_notify", "foreign_decodes", "unobserved", "freed_in_use"):
        with pytest.raises(KvwitnessError, match="kvwitness audit"):
            kvwitness.audit.query(name, store=fresh)


def test_a_connection_for_questions_reads_no_other_file(stores: Stores, tmp_path: Path) -> None:
    secret = tmp_path / "secret.csv"
    secret.write_text("a\n1\n")
    with connect(stores(STUB)) as connection:
        with pytest.raises(Exception, match="disabled by configuration"):
            connection.execute(f"SELECT * FROM read_csv('{secret}')")
        with pytest.raises(Exception, match="locked"):
            connection.execute("SET enable_external_access = true")


@pytest.mark.parametrize(
    "text",
    [
        "SELECT 1",
        "-- question: a\n-- means: b\nSELECT 1",
        "-- question: a\n-- means: b\n-- cannot say: c\n-- odd\n",
        "-- question: a\n-- param x BLOB: y\n-- means: b\n-- cannot say: c\nSELECT getvariable('x')",
        "-- question: a\n-- means: b\n-- cannot say: c\nSELECT getvariable('x')",
    ],
)
def test_a_query_without_a_whole_header_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"x\.sql"):
        parse("x", text)


def test_no_parameter_is_named_like_a_column(stores: Stores) -> None:
    """As a macro it would be taken for the column, or the column for it."""
    with stores(STUB).connect() as connection:
        rows = connection.execute("SELECT DISTINCT column_name FROM duckdb_columns() WHERE database_name = 'store'")
        columns = {name for (name,) in rows.fetchall()}
    for query in queries().values():
        assert not {p.name for p in query.parameters} & columns, query.name


def test_findings_and_the_list_of_tenants_agree(stores: Stores) -> None:
    store = stores(RECORDED)
    leaks = store.result("findings").filter(pl.col("verdict") == "leak")
    named = set(leaks["other_tenants"].explode().drop_nulls())
    assert set(kvwitness.audit.query("tenants_to_notify", store=store)["tenant"]) == named


@pytest.fixture(scope="session")
def other_duckdbs(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Pythons with DuckDB 1.4, 1.5 and 2.x: those that KVWITNESS_DUCKDB_OLD names, else new environments."""
    if named := os.environ.get("KVWITNESS_DUCKDB_OLD"):
        return named.split(":")
    return [_environment(tmp_path_factory, wanted) for wanted in ("==1.4.*", "==1.5.*", ">=2,<3")]


@pytest.fixture(scope="session")
def duckdb_shell(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The DuckDB shell of the path, else the one that pip has."""
    if found := os.environ.get("KVWITNESS_DUCKDB_SHELL") or shutil.which("duckdb"):
        return found
    return str(Path(_environment(tmp_path_factory, "", "duckdb-cli")).with_name("duckdb"))


def _environment(factory: pytest.TempPathFactory, version: str, package: str = "duckdb") -> str:
    path = factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", str(path)], check=True)
    python = str(path / "bin" / "python")
    subprocess.run([python, "-m", "pip", "install", "--quiet", f"{package}{version}"], check=True)
    return python
