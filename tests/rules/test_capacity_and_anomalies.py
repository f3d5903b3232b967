"""Figures that do not fit together, and distributions that move."""

from __future__ import annotations

from kvwitness.audit.rules.model import Context
from tests.rules.traces import Trace, context_of, judge

DRIFT = "capacity-drift"


def limits(trace: Trace, t: float, engine: str, role: str, **figures: object) -> Trace:
    given = {"advertised_tokens": 500, "input_limit_tokens": 490, "pool_tokens": 512} | figures
    return trace.add(t, f"{engine}/0", "engine.limits", engine=engine, role=role, **given)


def whys(trace: Trace) -> list[str]:
    found = judge(DRIFT, trace)
    assert {(f["request"], f["verdict"]) for f in found} <= {(None, "exposure")}
    return [f["why"] for f in found]


def test_pool_sizes_of_roles_may_differ() -> None:
    trace = limits(Trace(), 1, "p", "prefill")
    assert whys(limits(trace, 1, "d", "decode", pool_tokens=9999)) == []


def test_roles_that_enforce_different_limits() -> None:
    trace = limits(limits(Trace(), 1, "p", "prefill", input_limit_tokens=400), 1, "d", "decode")
    assert whys(trace) == ["input_limit_tokens is 400 on p and 490 on d"]


def test_engines_of_different_models_are_not_on_one_path() -> None:
    trace = limits(Trace(), 1, "p", "prefill", model="a", input_limit_tokens=400)
    assert whys(limits(trace, 1, "d", "decode", model="b")) == []


def test_only_engines_that_served_one_request_are_compared() -> None:
    trace = limits(limits(Trace(), 1, "p", "prefill"), 1, "d", "decode")
    limits(limits(trace, 1, "p2", "prefill", input_limit_tokens=9), 1, "d2", "decode", input_limit_tokens=9)
    for request, pair in (("r1", ("p", "d")), ("r2", ("p2", "d2"))):
        for engine in pair:
            trace.add(2, f"{engine}/0", "page.alloc", pool=f"{engine}/0/kv", pages=[1], request=request)
    assert whys(trace) == []


def test_a_promise_beyond_the_smaller_pool_of_the_path() -> None:
    trace = limits(Trace(), 1, "p", "prefill", advertised_tokens=None, input_limit_tokens=None, pool_tokens=300)
    assert whys(limits(trace, 1, "d", "decode")) == ["d advertises 500 tokens, the pool of p on its path holds 300"]


def test_a_gateway_promises_for_the_engines_behind_it() -> None:
    trace = limits(Trace(), 1, "gw", "gateway", advertised_tokens=9999, input_limit_tokens=None, pool_tokens=None)
    assert whys(limits(trace, 1, "e", "unified")) == ["gw advertises 9,999 tokens, the pool of e on its path holds 512"]


def test_the_pool_is_measured_where_its_size_is_not_stated() -> None:
    trace = limits(Trace(), 1, "e", "unified", pool_tokens=None)
    for group, pages in (("full", 17), ("window", 5)):
        trace.add(2, "e/0", "engine.pool", pool=f"e/0/{group}", page_tokens=16, pages_total=pages, reserved=[0])
    assert whys(trace) == ["e advertises 500 tokens, its pool holds 256"]


def test_what_is_said_again_without_a_figure_is_no_change() -> None:
    trace = limits(Trace(), 1, "e", "unified")
    assert whys(trace.add(5, "e/0", "engine.limits", engine="e", role="unified", version="2")) == []


def test_a_figure_that_changes() -> None:
    trace = limits(limits(Trace(), 1, "e", "unified"), 5, "e", "unified", pool_tokens=600)
    assert whys(trace) == ["pool_tokens of e changed from 512 to 600 after start"]


WEEK_S = 8 * 86_400


def served(usual: list[int], late: list[int], *, over: bool = True, **overrides: float) -> Context:
    """An engine with a limit of 100 answers prompts of some lengths over eight days, then others within an hour.

    `over`: the record goes on, so that the hour is over.
    """
    trace = Trace().add(0, "e/0", "engine.limits", engine="e", input_limit_tokens=100)
    times = [1 + n * (WEEK_S - 10) / len(usual) for n in range(len(usual))]
    times += [WEEK_S + 10 * n for n in range(len(late))]
    for n, (t, length) in enumerate(zip(times, usual + late, strict=True)):
        trace.received(t, f"r{n}", "t-a", prompt_tokens=length, model="m")
        trace.add(t, "e/0", "page.alloc", pool="e/0/kv", pages=[1], request=f"r{n}")
        trace.finished(t, f"r{n}", 200)
    if over:
        trace.received(WEEK_S + 86_400, "last", "t-a", prompt_tokens=20, model="m")
    rules = ("near-limit-successes", "prompt-length-shift")
    return context_of(trace, overrides={rule: dict(overrides) for rule in rules})


def test_successes_near_the_limit_above_the_usual_rate() -> None:
    found = judge("near-limit-successes", served([20] * 200, [20] * 40 + [90] * 20))
    assert [(f["engine"], f["request"]) for f in found] == [("e", None)]
    assert (
        found[0]["why"] == "20 of 60 successes came near the limit within one window, 33.3 % against 0.2 % before of e"
    )
    assert len(found[0]["evs"]) == 20


def test_a_window_is_not_judged_before_it_is_over() -> None:
    assert judge("near-limit-successes", served([20] * 200, [20] * 40 + [90] * 20, over=False)) == []


def test_the_usual_rate_is_no_anomaly() -> None:
    mixture = [20, 20, 20, 95]
    assert judge("near-limit-successes", served(mixture * 60, mixture * 30)) == []


def test_too_few_to_judge() -> None:
    assert judge("near-limit-successes", served([20] * 199, [95] * 60)) == []
    assert judge("near-limit-successes", served([20] * 300, [95] * 19)) == []
    assert judge("prompt-length-shift", served([20] * 499, [95] * 200)) == []


def test_lengths_that_move_are_reported_for_tenant_and_engine() -> None:
    found = judge("prompt-length-shift", served([20] * 600, [95] * 200))
    assert sorted((f["tenant"] or "", f["engine"] or "") for f in found) == [("", "e"), ("t-a", "")]
    assert any(f["why"].endswith("64 to 127 tokens, t-a to m") for f in found)


def test_thresholds_come_from_configuration() -> None:
    few = ([20] * 60, [95] * 15)
    low = {"min_window": 10, "min_baseline": 50, "min_hits": 5}
    for rule in ("near-limit-successes", "prompt-length-shift"):
        assert judge(rule, served(*few)) == []
        assert judge(rule, served(*few, **low)) != []
        assert judge(rule, served(*few, **low, history_s=30 * 86_400.0)) == []
        assert judge(rule, served(*few, **low, false_alarms=1e-300)) == []
