"""What a tenant of one's own had sent is found in the pages of others, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gpu_tracer.conftest import REASON

torch = pytest.importorskip("torch", reason=REASON)

from kvwitness.gpu_tracer.content.fingerprint import Fingerprints  # noqa: E402
from kvwitness.gpu_tracer.content.layout import by_page  # noqa: E402
from kvwitness.gpu_tracer.content.search import KnownContent, Sighting  # noqa: E402
from kvwitness.gpu_tracer.lab.cluster import Admitted, Cluster  # noqa: E402
from kvwitness.gpu_tracer.lab.decode import Running  # noqa: E402
from kvwitness.gpu_tracer.lab.faults import Fault  # noqa: E402
from kvwitness.gpu_tracer.lab.prefill import Job  # noqa: E402
from tests.engines.judged import Judged, judged  # noqa: E402
from tests.gpu_tracer.content.test_fingerprint import SECRET, noise  # noqa: E402

SIZE, LAYERS = 4, 3


def cache(bits: int = 128) -> tuple[torch.Tensor, Fingerprints]:
    """Pages of noise, and their fingerprints."""
    memory = noise((LAYERS, 2, 12, SIZE, 2, 8), torch.float16, 5)
    parts = [by_page(at, f"{at} {kv}", memory[at, row]) for at in range(LAYERS) for row, kv in enumerate("KV")]
    return memory, Fingerprints(parts, SECRET, bits=bits)


@pytest.mark.parametrize("bits", [64, 128])
def test_known_content_is_found_by_page_layer_and_slot(bits: int) -> None:
    memory, taken = cache(bits)
    known = KnownContent(taken)
    known.learn("m:1", [1, 2], 1, 8)
    known.learn("m:2", [3], 2, 4)
    assert (len(known), known.markers) == (2 * 7 + 2 * 2, ["m:1", "m:2"])
    assert known.find([7, 8, 9], 12) == []
    memory[:, :, 8] = memory[:, :, 2]  # a whole page
    memory[2, :, 9, 3] = memory[2, :, 3, 2]  # one row in one layer, at another place
    assert known.find([7, 8, 9], 12) == [Sighting("m:1", 8, (1, 2), (0, 1, 2, 3)), Sighting("m:2", 9, (2,), (3,))]
    known.forget()
    assert (len(known), known.find([8, 9], 8)) == (0, [])


def test_only_what_a_request_has_filled_is_looked_at() -> None:
    memory, taken = cache()
    known = KnownContent(taken)
    known.learn("m:1", [1], 1, 4)
    memory[:, :, 8] = memory[:, :, 1]
    assert known.find([7, 8], 4) == []
    assert known.find([7, 8], 6) == [Sighting("m:1", 8, (1, 2), (1,))]
    assert known.find([8], 0) == []


def test_what_everybody_has_is_not_known() -> None:
    memory, taken = cache()
    known = KnownContent(taken)
    known.learn("m:1", [1], 2, 4)
    memory[:, :, 8, :2] = memory[:, :, 1, :2]  # a common beginning
    memory[0, :, 8, 2:] = memory[0, :, 1, 2:]  # the same tokens at the same places
    assert known.find([8], 4) == []


def test_what_cannot_be_learned_is_refused() -> None:
    _, taken = cache()
    known = KnownContent(taken)
    for first, end in ((0, 4), (2, 2), (1, 9)):
        with pytest.raises(ValueError, match=f"positions {first} to {end} of 2 pages of 4"):
            known.learn("m:1", [1, 2], first, end)
    assert len(known) == 0
    lowest = Fingerprints([by_page(0, "K", noise((2, 2, 1, 8), torch.uint8))], SECRET)
    with pytest.raises(ValueError, match="layers above 0"):
        KnownContent(lowest)


def served(tmp_path: Path, fault: Fault) -> tuple[list[Sighting], Judged]:
    """The lab's engine, in which t-canary sends digits, and then t-birch something else, whose transfer has a fault."""
    (tmp_path / "rings").mkdir()
    cluster = Cluster(tmp_path / "rings")
    pool = cluster.decode.pool
    known = KnownContent(Fingerprints(pool.fingerprints.parts, SECRET, bits=128))

    def admitted(job: Job, fault: Fault = Fault.NONE) -> tuple[Admitted, Running]:
        one = cluster.admit(job, fault)
        assert one is not None
        return one, cluster.receive(one)

    _, running = admitted(Job("r-canary", "t-canary", "70935182644190287355", 4))
    known.learn("m:1", running.table, 4, running.filled)
    cluster.decode.tracer.canary_planted("m:1", "r-canary", tenant="t-canary")
    own = known.find(running.table, running.filled)
    assert {one.marker for one in own} == {"m:1"}
    cluster.run([running])
    _, running = admitted(Job("r-birch", "t-birch", "dear desk, where is the note", 4), fault)
    found = known.report(cluster.decode.tracer, pool.name, "r-birch", running.table, running.filled)
    cluster.run([running])
    cluster.close()
    return found, judged(tmp_path / "rings", tmp_path)


def test_a_leak_from_the_canary_tenant_is_found_in_the_pages_of_the_other(tmp_path: Path) -> None:
    found, told = served(tmp_path, Fault.DROPPED_PAGES)
    assert found
    assert {(one.marker, one.layers) for one in found} == {("m:1", (1,))}
    leak = [one for one in told.findings if one["rule"] == "canary-leak"]
    assert [(one["verdict"], one["request"], one["other_tenants"]) for one in leak] == [
        ("leak", "r-birch", ["t-canary"])
    ]
    assert ([one.page for one in found], leak[0]["pages"]) == ([1, 2, 3], [[1, 3]])
    assert leak[0]["why"].startswith("content of marker m:1 of t-canary was seen on ")
    assert told.verdicts == {"r-canary": "clean", "r-birch": "leak"}


def test_without_a_fault_nothing_is_found(tmp_path: Path) -> None:
    found, told = served(tmp_path, Fault.NONE)
    assert found == []
    assert told.findings == []
    assert {*told.verdicts.values()} == {"clean"}
