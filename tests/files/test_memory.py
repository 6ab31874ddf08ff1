"""Pages are used again while somebody wants that, and never while anybody holds them."""

from __future__ import annotations

import threading
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
    own_pages,
    pages_used_again,
)

LARGE = 3 * OWN_NBYTES + 200_000
LIMIT = 10 * LARGE


@pytest.fixture
def mapped(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the lengths of what is newly mapped."""
    lengths: list[int] = []
    anew = memory._mapped

    def count(length: int) -> Any:
        lengths.append(length)
        return anew(length)

    monkeypatch.setattr(memory, "_mapped", count)
    return lengths


@pytest.mark.parametrize("nbytes", [1, OWN_NBYTES - 1, OWN_NBYTES, OWN_NBYTES + 1, LARGE])
def test_as_many_bytes_as_asked_for(nbytes: int) -> None:
    pages = own_pages(nbytes)
    assert (pages.dtype, pages.shape) == (np.dtype(np.uint8), (nbytes,))
    pages[:] = 7
    assert pages.flags.writeable
    assert pages.flags.c_contiguous


def test_what_is_let_go_serves_the_next_of_about_its_length(mapped: list[int]) -> None:
    with pages_used_again(LIMIT):
        for nbytes in (LARGE, LARGE - 100, LARGE, LARGE + 100):
            own_pages(nbytes)[:] = 1
    assert len(mapped) == 1


PARTS = pytest.mark.parametrize(
    "part_of",
    [
        lambda pages: pages[5:6],
        lambda pages: pages[:16].view("<f4").reshape(2, 2)[1:, ...],
        lambda pages: pages.data[3:4],
        lambda pages: np.frombuffer(pages[:8].data, dtype="<f8"),
    ],
)


@PARTS
def test_what_is_held_in_part_serves_nobody(mapped: list[int], part_of: Any) -> None:
    with pages_used_again(LIMIT):
        held = part_of(own_pages(LARGE))
        before = bytes(held)
        own_pages(LARGE)[:] = 255
        assert bytes(held) == before
        assert len(mapped) == 2
        del held
        both = [own_pages(LARGE), own_pages(LARGE)]
        assert len(mapped) == 2
        assert not np.shares_memory(*both)


def test_no_more_is_kept_and_held_than_the_limit(mapped: list[int]) -> None:
    held = []
    with pages_used_again(LIMIT):
        for n in (1, 2, 4, 1, 4, 2, 8, 1, 8, 8):
            own_pages(LARGE * n)
            kept = sum(length * len(of) for length, of in memory._spare._waiting.items())
            assert 0 < kept <= LIMIT
        while len(held) < 12:  # more than the limit: nothing is left to keep
            held.append(own_pages(LARGE))
        assert not any(memory._spare._waiting.values())
        held.pop()
        held.pop()
        assert not any(memory._spare._waiting.values())
        held.clear()
        n_mapped = len(mapped)
        own_pages(LARGE)
        assert len(mapped) == n_mapped


def test_nothing_is_kept_once_nobody_wants_it(mapped: list[int]) -> None:
    with pages_used_again(LIMIT), pages_used_again(LIMIT):
        own_pages(LARGE)
        late = own_pages(2 * LARGE)
    assert not memory._spare._waiting
    late[:] = 1
    del late
    assert not memory._spare._waiting
    own_pages(LARGE)
    own_pages(LARGE)
    assert len(mapped) == 4


def test_threads_never_get_the_same() -> None:
    wrong: list[int] = []

    def work(mine: int) -> None:
        for _ in range(50):
            pages = own_pages(OWN_NBYTES)
            pages[:: OWN_NBYTES // 16] = mine
            if (pages[:: OWN_NBYTES // 16] != mine).any():
                wrong.append(mine)

    with pages_used_again(LIMIT):
        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


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


def test_of_samples_no_more_is_kept_than_the_limit() -> None:
    n = MOST_LENT_NBYTES // OWN_NBYTES
    held = [for_one_sample(OWN_NBYTES) for _ in range(3 * n)]
    kept = sum(map(len, memory._lent._by_length.values()))
    assert kept <= n
    for number, each in enumerate(held):
        each[:] = number % 251
    assert all((each == number % 251).all() for number, each in enumerate(held))
