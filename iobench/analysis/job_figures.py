"""Where all the time of a job went, as figures: frozen values, without formatting."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

import msgspec
from msgspec.structs import replace

from iobench.json_keys import HIDDEN, figure

if TYPE_CHECKING:
    from collections.abc import Sequence

PARTS: Final = (
    "imports", "initial_load", "stage_in", "train_compute", "train_wait", "validation_compute",
    "validation_wait", "checkpoint", "between", "shutdown",
)  # fmt: skip
NEARLY: Final = 0.95
"""Training processes that ran for this share of the longest one's time ran as long."""
LOADS: Final = ("initial_load", "stage_in", "train_wait", "validation_wait")
"""Parts that go into getting data."""


class JobPart(msgspec.Struct, frozen=True):
    """One part of a job's time; the parts add up to the job's, exactly.

    ``imports`` (the start of the interpreter among them), ``initial_load`` (reading before the
    first loader is asked), ``stage_in`` (files copied nearer), ``train_compute``, ``train_wait``,
    ``validation_compute``, ``validation_wait`` (of tests and predictions too), ``checkpoint``,
    ``between`` (outside of loops: set-up, and what is done between and after them), ``shutdown``.
    """

    part: str
    ns: int
    nbytes: int | None = None  # read for it, written in it, or delivered to the loop
    n_files: int | None = None  # that the initial load read


class JobTime(msgspec.Struct, frozen=True):
    """Where the time of a training process went, from its start to its end, as far as known."""

    wall_ns: int
    parts: tuple[JobPart, ...]  # every part once; those that were not met have no time
    read_by: str = ""  # the function that read most of the initial load
    unknown: tuple[str, ...] = ()  # what is unknown, and where its time stands
    unseen_nbytes: int = 0  # read before the first loader, beyond what imports may read
    reload_ns: int = 0  # of ``between``: reading data, after the first loader was asked
    comm_ns: int = 0  # of computing: collective operations, waiting for other ranks among it
    lost_end_ns: int = 0  # from the last span to the end, where recording did not end
    rank: int = 0  # of a job, the one whose times these are
    ranks: tuple[JobTime, ...] = ()  # of a job, all its training processes
    first_batch_ns: int | None = None  # from the first call for a batch until the first batch
    JSON_KEYS: ClassVar = {
        "read_by": HIDDEN,
        "lost_end_ns": HIDDEN,
        "rank": HIDDEN,
        "ranks": HIDDEN,
    }

    @figure
    def bound_by(self) -> str:
        """The part that holds most of the time."""
        return max(self.parts, key=lambda each: each.ns).part

    def part(self, name: str) -> JobPart:
        """Return one part by its name."""
        return next(each for each in self.parts if each.part == name)

    @property
    def load_ns(self) -> int:
        """Time that goes into getting data: that of `LOADS`, and reading outside of loops."""
        return self.reload_ns + sum(each.ns for each in self.parts if each.part in LOADS)

    def share(self, spent_ns: int) -> float | None:
        """Return the share of its time that this is; None without time."""
        return spent_ns / self.wall_ns if self.wall_ns else None


def job_of_ranks(ranks: Sequence[JobTime]) -> JobTime:
    """Return where the time of a job went: that of one of its training processes.

    So no two clocks are compared. Of those that ran longest it is the one that spent most on
    getting data: where they take their steps together, the others waited for it as they computed.
    Bytes and files are those of all of them.
    """
    least_ns = NEARLY * max(each.wall_ns for each in ranks)
    longest = max(
        (each for each in ranks if each.wall_ns >= least_ns),
        key=lambda each: (each.load_ns, each.wall_ns, -each.rank),
    )
    parts = tuple(
        replace(
            part,
            nbytes=_sum([each.part(part.part).nbytes for each in ranks]),
            n_files=_sum([each.part(part.part).n_files for each in ranks]),
        )
        for part in longest.parts
    )
    unknown = [*dict.fromkeys(text for each in ranks for text in each.unknown)]
    return replace(longest, parts=parts, unknown=tuple(unknown), ranks=tuple(ranks))


def _sum(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
