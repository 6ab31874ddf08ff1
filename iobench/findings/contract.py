"""What a finding consists of: figures of a run, and the section that says them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

if TYPE_CHECKING:
    from iobench.analysis.run import RankRun
    from iobench.report.document import Section

F = TypeVar("F")


class Finding(msgspec.Struct, Generic[F], frozen=True):
    """One question about a run: its figures for JSON, and its section for every report.

    An installed package adds one by an entry point of the group ``iobench.findings`` that names
    such an object; nothing else knows it. `iobench.testing.FindingTests` checks one.

    Parameters
    ----------
    name : str
        The key of its figures in JSON.
    order : int
        Where its section stands, small ones first: below 75 after the verdict, below
        100 after the timeline.
    struct : type
        A `msgspec.Struct` or dataclass, whose fields are keys of JSON and stand in its schema; or
        a tuple of such.
    figures : callable
        From one training process of a run to such a struct; None where there is nothing to say.
    section : callable
        From these figures, and nothing else, to a section of the report; None to say nothing.
    together : callable, optional
        From the figures of all training processes of a job to those of the job, whose section
        stands in place of one for each process.
    side_by_side : callable, optional
        From the figures of several configurations that load the same samples to those of all.
        Their section stands in the comparison, in place of one for each.
    of_job : bool
        Whether it is about a job alone: figures of one training process are only what ``together``
        compares, and what that returns stands in JSON's ``job`` itself.
    """

    name: str
    order: int
    struct: Any
    figures: Callable[[RankRun], F | None]
    section: Callable[[F], Section | None]
    together: Callable[[Sequence[F]], F | None] | None = None
    side_by_side: Callable[[Sequence[F]], F | None] | None = None
    of_job: bool = False
