"""Keys, digests, salts and policies of shared pages."""

from __future__ import annotations

import pytest

from tests.rules.traces import Trace, judge, verdicts

ALIAS, SALT = "cache-key-alias", "salt-crossing"


def published(sharing: str = "global", ns: object = None, kind: str = "kv", **asked: object) -> Trace:
    """r1 of t-a publishes page 1 under k; `asked` is what r1 was received with."""
    trace = Trace().add(
        0, "e/0", "engine.pool", pool="e/0/kv", page_tokens=16, pages_total=9, sharing=sharing, kind=kind
    )
    trace.received(1, "r1", "t-a", **asked)
    return trace.add(
        2, "e/0", "page.publish", pool="e/0/kv", pages=[1], key="k", ns=ns or {}, digest="d1", request="r1"
    )


def share(trace: Trace, tenant: str = "t-b", asked: dict[str, object] | None = None, **fields: object) -> Trace:
    """r2 attaches to page 1 under k, with an equal digest unless told otherwise."""
    trace.received(3, "r2", tenant, **(asked or {}))
    given = {"pool": "e/0/kv", "pages": [1], "key": "k", "digest": "d1"} | fields
    return trace.add(4, "e/0", "page.share", request="r2", **{k: v for k, v in given.items() if v is not None})


def test_equal_digests_in_one_namespace_are_ordinary() -> None:
    assert verdicts(ALIAS, share(published())) == []
    assert verdicts(SALT, share(published())) == []


@pytest.mark.parametrize(("tenant", "verdict"), [("t-b", "leak"), ("t-a", "integrity")])
def test_another_digest_under_the_key(tenant: str, verdict: str) -> None:
    assert verdicts(ALIAS, share(published(), tenant, digest="d2")) == [("r2", verdict)]


@pytest.mark.parametrize("field", ["adapter", "media", "model", "epoch"])
def test_namespaces_that_differ_in_more_than_the_salt(field: str) -> None:
    trace = share(published(ns={field: "1"}), ns={field: "2"})
    assert [(f["request"], f["verdict"]) for f in judge(ALIAS, trace)] == [("r2", "leak")]


def test_without_a_stated_namespace_only_adapter_and_salt_are_compared() -> None:
    assert verdicts(ALIAS, share(published(ns={"model": "m", "media": "i", "epoch": 1}))) == []
    assert verdicts(ALIAS, share(published(ns={"adapter": "a"}))) == [("r2", "leak")]
    assert verdicts(ALIAS, share(published(ns={"adapter": "a"}), asked={"adapter": "a"})) == []


def test_the_publication_whose_pages_are_shared_is_the_one_that_counts() -> None:
    trace = published().add(
        2.5, "e/0", "page.publish", pool="e/0/kv", pages=[7], key="k", ns={}, digest="d2", request="r1"
    )
    assert verdicts(ALIAS, share(trace)) == []
    assert verdicts(ALIAS, share(trace, pages=[7])) != []


def test_pages_published_anew_carry_the_new_digest() -> None:
    trace = published().add(
        2.5, "e/0", "page.publish", pool="e/0/kv", pages=[1], key="k", ns={}, digest="d2", request="r1"
    )
    assert verdicts(ALIAS, share(trace, digest="d2")) == []


def test_weights_that_changed_since_the_publication() -> None:
    trace = published().add(2.5, "e/0", "engine.epoch", engine="e", epoch=2)
    assert [f["why"].endswith("epoch") for f in judge(ALIAS, share(trace))] == [True]


def test_an_epoch_announced_before_the_publication_is_no_change() -> None:
    trace = Trace().add(0, "e/0", "engine.epoch", engine="e", epoch=2).received(1, "r1", "t-a")
    trace.add(2, "e/0", "page.publish", pool="e/0/kv", pages=[1], key="k", ns={}, digest="d1", request="r1")
    assert verdicts(ALIAS, share(trace)) == []


def test_a_clash_that_nobody_attached_to_is_an_exposure() -> None:
    trace = (
        published()
        .received(3, "r2", "t-b")
        .add(4, "e/0", "page.publish", pool="e/0/kv", pages=[2], key="k", ns={}, digest="d2", request="r2")
    )
    assert verdicts(ALIAS, trace) == [("r2", "exposure")]


def test_a_key_that_was_withdrawn_may_be_used_again() -> None:
    trace = published().received(3, "r2", "t-b").add(3, "e/0", "page.unpublish", pool="e/0/kv", pages=[1], key="k")
    trace.add(4, "e/0", "page.publish", pool="e/0/kv", pages=[2], key="k", ns={}, digest="d2", request="r2")
    assert verdicts(ALIAS, trace) == []


SALTED = {"salt_hmac": "s1"}


def test_salts_that_differ_with_equal_digests_are_an_exposure_and_no_alias() -> None:
    trace = share(published(ns=SALTED), asked={"salt_hmac": "s2"})
    assert verdicts(SALT, trace) == [("r2", "exposure")]
    assert verdicts(ALIAS, trace) == []


def test_salts_that_differ_with_other_digests_are_a_leak() -> None:
    trace = share(published(ns=SALTED), asked={"salt_hmac": "s2"}, digest="d2")
    assert verdicts(SALT, trace) == [("r2", "leak")]


def test_without_digests_equality_was_not_shown() -> None:
    found = judge(SALT, share(published(ns=SALTED), digest=None))
    assert [f["verdict"] for f in found] == ["exposure"]
    assert "equality of content was not shown" in found[0]["why"]


def test_one_salt_is_one_namespace_even_if_the_publication_does_not_state_it() -> None:
    assert verdicts(SALT, share(published(**SALTED), asked=dict(SALTED))) == []


def test_a_pool_that_keeps_tenants_apart() -> None:
    assert verdicts(SALT, share(published("tenant"))) == [("r2", "exposure")]
    assert verdicts(SALT, share(published("tenant"), "t-a")) == []


def test_encoder_entries_are_for_everybody_who_sends_the_item() -> None:
    ns = {"media": "m1"}
    assert verdicts(SALT, share(published("global", ns, "encoder"), asked={"salt_hmac": "s2"})) == []
    assert verdicts(ALIAS, share(published("global", ns, "encoder"), ns=ns)) == []


def test_a_request_may_attach_to_what_it_published_itself() -> None:
    trace = published("tenant")
    trace.add(4, "e/0", "page.share", pool="e/0/kv", pages=[1], key="k", digest="d9", request="r1")
    assert verdicts(ALIAS, trace) == []


def probes(lengths: list[int], tenant: str = "t-b", output: int = 1, pause: float = 1.0) -> Trace:
    trace = Trace().received(1, "r0", "t-a")
    trace.add(2, "e/0", "page.publish", pool="e/0/kv", pages=[[1, 9]], key="k", ns={}, request="r0")
    for n, length in enumerate(lengths, start=1):
        request, at = f"r{n}", 3 + n * pause
        trace.received(at, request, tenant, prompt_tokens=length + 4, max_new_tokens=output)
        trace.add(at, "e/0", "page.share", pool="e/0/kv", pages=[1], key="k", tok=[0, length], request=request)
    return trace


RISING = [16, 32, 48, 64, 80, 96]


def test_rising_matches_are_probing() -> None:
    found = judge("prefix-probing", probes(RISING))
    assert [(f["tenant"], f["other_tenants"]) for f in found] == [("t-b", ["t-a"])]


def test_guesses_that_miss_do_not_hide_it() -> None:
    assert judge("prefix-probing", probes([n for length in RISING for n in [length] * 4])) != []


def test_what_is_not_probing() -> None:
    assert judge("prefix-probing", probes(RISING[:5])) == []
    assert judge("prefix-probing", probes(RISING, "t-a")) == []
    assert judge("prefix-probing", probes(RISING, output=64)) == []
    assert judge("prefix-probing", probes(RISING, pause=100.0)) == []
    assert judge("prefix-probing", probes([16, 96, 32, 80, 48, 64, 16, 96])) == []
