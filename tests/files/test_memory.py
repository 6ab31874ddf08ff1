"""Memory of a sample serves the next one of the thread, and never while anybody holds it."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

from iobench.files import memory
from iobench.files.memory import (
    LENT_NBYTES,
    MOST_LENT_NBYTES,
    OWN_NBYTES,
    array_for_one_sample,
    for_one_sample,
    is_bounded,
    pages_used_again,
)

PARTS = pytest.mark.parametrize(
    "part_of",
    [
        lambda pages: pages[5:6],
        lambda pages: pages[:16].view("<f4").reshape(2, 2)[1:, ...],
        lambda pages: pages.data[3:4],
        lambda pages: np.frombuffer(pages[:8].data, dtype="<f8"),
    ],
)


def test_samples_are_made_in_the_memory_of_those_before() -> None:
    def sample() -> list[int]:
        raw = [for_one_sample(LENT_NBYTES + 1000 * n) for n in range(3)]
        arrays = [array_for_one_sample((each.size // 8, 2), "<f4") for each in raw]
        assert all(each.flags.c_contiguous and each.flags.writeable for each in arrays)
        return sorted({each.ctypes.data for each in (*raw, *arrays)})

    first = sample()
    assert len(first) == 6
    assert all(sample() == first for _ in range(3))


@PARTS
def test_what_is_held_of_a_sample_is_not_written_over(part_of: Any) -> None:
    held = part_of(for_one_sample(LENT_NBYTES))
    before = bytes(held)
    for _ in range(3):
        for_one_sample(LENT_NBYTES)[:] = 255
        array_for_one_sample((LENT_NBYTES // 4,), "<i4")[:] = -1
    assert bytes(held) == before


@pytest.mark.parametrize("limit_nbytes", [0, 8 * 4 * OWN_NBYTES])
def test_of_samples_no_more_is_kept_than_the_limit(
    limit_nbytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "_lent", memory._LentMemory())  # other tests left some in it
    with pages_used_again(limit_nbytes) if limit_nbytes else nullcontext():
        assert is_bounded() == bool(limit_nbytes)
        n = (limit_nbytes // 8 or MOST_LENT_NBYTES) // OWN_NBYTES
        held = [for_one_sample(OWN_NBYTES) for _ in range(3 * n)]
        kept = sum(map(len, memory._lent._by_length.values()))
        assert kept <= n
        for number, each in enumerate(held):
            each[:] = number % 251
        assert all((each == number % 251).all() for number, each in enumerate(held))
