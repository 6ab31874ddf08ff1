"""What a question asked of a run consists of: its figures, and the section that says them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

import msgspec

if TYPE_CHECKING:
    from iobench.analysis.run import RankRun
    from iobench.report.document import Section

F = TypeVar("F")


class Finding(msgspec.Struct, Generic[F], frozen=True):
    """One question asked of a run, and how it is answered in every report.

    An installed package adds one with an entry point of the group ``iobench.findings`` that names
    such an object. Its figures stand in JSON, its section in the terminal, in Markdown, on the page
    and in notebooks; nothing else knows it.

    Parameters
    ----------
    name : str
        The key of its figures in JSON.
    order : int
        Where its section stands among others, small ones first. Those that come along have 100,
        200, ...; below 100 it follows the verdict.
    figures : callable
        From one training process of a run to a frozen dataclass, of which JSON has every field
        (`iobench.json_keys` says how to call them otherwise); None where there is nothing to say.
    section : callable
        From these figures, and nothing else, to a section of the report; None to say nothing.
    together : callable, optional
        From the figures of all training processes of a job to those of the job, as energy adds up.
        The job's section then stands in place of one for each process.
    side_by_side : callable, optional
        From the figures of several ways of loading the same samples to those of all of them. Their
        section then stands in the comparison, in place of one for each way.
    of_job : bool
        Whether it is asked of a job alone: figures of one training process are what ``together``
        compares, and stand nowhere; what that returns stands in JSON's ``job`` itself.
    """

    name: str
    order: int
    figures: Callable[[RankRun], F | None]
    section: Callable[[F], Section | None]
    together: Callable[[Sequence[F]], F | None] | None = None
    side_by_side: Callable[[Sequence[F]], F | None] | None = None
    of_job: bool = False
