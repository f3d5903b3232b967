"""Where the tensors of a cache lie in memory."""

from __future__ import annotations

import pytest

from tests.gpu_tracer.conftest import REASON

torch = pytest.importorskip("torch", reason=REASON)

from kvwitness.gpu_tracer.allocator import Extent, extents_of  # noqa: E402
from kvwitness.gpu_tracer.content.layout import by_page  # noqa: E402


def test_views_of_tensors_are_taken_from_first_byte_to_last() -> None:
    pool = torch.zeros(2, 8, 4, 2, 16, dtype=torch.bfloat16)
    start, whole = pool.data_ptr(), pool.numel() * 2
    parts = [by_page(0, "k", pool[0]), by_page(0, "v", pool[1]), by_page(0, "k by head", pool[0].transpose(1, 2))]
    views = {part.name: part.data for part in parts} | {"head": pool[:, :, :, 1], "nothing": pool[:, :0]}
    assert extents_of(views) == [
        Extent("k", start, whole // 2),
        Extent("v", start + whole // 2, whole // 2),
        Extent("k by head", start, whole // 2),
        Extent("head", start + 32, whole - 32),
    ]
