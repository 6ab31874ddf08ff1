"""Groups are read before they are needed, where there is room, and never in another order."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from iobench.datasets.sample_making import GroupsAhead

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

GROUPS = [[0, 1], [2], [3, 4, 5]]


class Reading:
    """Notes what is read; group 1 cannot be."""

    def __init__(self) -> None:
        self.done: list[int] = []

    def __call__(self, numbers: Sequence[int]) -> str:
        self.done.append(numbers[0])
        if numbers[0] == 2:
            raise OSError("group 1 cannot be read")
        return f"raw {numbers[0]}"


@pytest.fixture
def reader() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


def always(_number: int, _n_read: int) -> bool:
    return True


def only_alone(_number: int, n_read: int) -> bool:
    return n_read == 1


def never(_number: int, _n_read: int) -> bool:
    return False


@pytest.mark.parametrize(("fits", "before"), [(always, [0, 3]), (only_alone, [0, 3]), (never, [0])])
def test_what_fits_is_read_before_it_is_taken_and_once(
    reader: ThreadPoolExecutor, fits: Callable[[int, int], bool], before: list[int]
) -> None:
    reading = Reading()
    ahead = GroupsAhead(reader, reading, fits, GROUPS)
    assert ahead.take(0) == "raw 0"
    for n_read in (2, 1, 1):
        ahead.read(2, n_read=n_read)
        ahead.read(3, n_read=n_read)  # there is none
    reader.submit(int).result()  # the only thread has done what came before
    assert reading.done == before
    assert ahead.take(2) == "raw 3"
    assert reading.done == [0, 3]


@pytest.mark.parametrize("fits", [always, never])
def test_what_cannot_be_read_is_an_error_where_it_is_taken(
    reader: ThreadPoolExecutor, fits: Callable[[int, int], bool]
) -> None:
    ahead = GroupsAhead(reader, Reading(), fits, GROUPS)
    ahead.read(1, n_read=1)
    assert ahead.take(0) == "raw 0"
    with pytest.raises(OSError, match="group 1"):
        ahead.take(1)
    assert ahead.take(2) == "raw 3"


def test_a_reading_that_has_not_begun_is_given_up(reader: ThreadPoolExecutor) -> None:
    go = threading.Event()
    reader.submit(go.wait)
    reading = Reading()
    ahead = GroupsAhead(reader, reading, always, GROUPS)
    ahead.read(2, n_read=1)
    ahead.cancel()
    go.set()
    reader.submit(int).result()
    assert reading.done == []
