"""What may be compared: runs that nothing can be said of, and figures that mean something else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from iobench.errors import ProfileError
from iobench.findings.compare.compared_run import OF_MACHINE
from iobench.report import units

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iobench.findings.compare.compared_run import MeasuredRun

OTHER_STEP: Final = "other step"
OTHER_BATCH: Final = "other batch size"
SAME_MACHINE: Final = tuple(name for name in OF_MACHINE if name not in ("system", "python"))


class Obstacle(msgspec.Struct, frozen=True):
    """Why runs are not compared.

    Parameters
    ----------
    why : str
        In a sentence without its full stop.
    is_final : bool
        Whether no figure would mean anything, so that it cannot be waved aside.
    """

    why: str
    is_final: bool = False


def refuse(runs: Sequence[MeasuredRun], *, anyway: bool) -> tuple[str, ...]:
    """Refuse runs whose comparison would say nothing; return what was waved aside.

    Parameters
    ----------
    runs : sequence of MeasuredRun
        The others are held against the first.
    anyway : bool
        Compare what can be computed nevertheless.

    Raises
    ------
    ProfileError
        With the reason, and how they are compared nevertheless where that makes sense.
    """
    found = [obstacle for run in runs for obstacle in _of_one(run)]
    found += [obstacle for run in runs[1:] for obstacle in _of_two(runs[0], run)]
    final = next((each for each in found if each.is_final), None)
    if final is not None:
        raise ProfileError(f"{final.why}; there is nothing to compare")
    if found and not anyway:
        raise ProfileError(f"{found[0].why}; --anyway compares them nevertheless")
    return tuple(each.why for each in found)


def _of_one(run: MeasuredRun) -> list[Obstacle]:
    if run.sums["whole"] is None:
        some = any(window.n_batches for window in run.parts("whole"))
        what = "some of its training processes got no batch" if some else "no batch was delivered"
        return [Obstacle(f"{run.name}: {what}", is_final=True)]
    if run.damaged or run.lost_spans:
        who = f" of {', '.join(run.damaged)}" if run.damaged else ""
        many = f"{units.count(run.lost_spans)} of its spans" if run.lost_spans else "spans"
        return [
            Obstacle(f"{run.name}: {many}{who} were lost or are damaged, so waits may be missing")
        ]
    return []


def _of_two(first: MeasuredRun, other: MeasuredRun) -> list[Obstacle]:
    a, b = first.facts, other.facts
    pair = f"{first.name} and {other.name}"
    # A script's dataset is a class; the same data may be read by two.
    if not (a.is_script or b.is_script) and a.dataset != b.dataset:
        return [Obstacle(f"{pair} are of different datasets, {a.dataset} and {b.dataset}")]
    if a.tiny != b.tiny:
        small = first.name if a.tiny else other.name
        return [Obstacle(f"{pair}: {small} uses tiny stand-ins, the other data of the real size")]
    if None not in (a.sample_nbytes, b.sample_nbytes) and a.sample_nbytes != b.sample_nbytes:
        sizes = f"{units.nbytes(a.sample_nbytes)} and {units.nbytes(b.sample_nbytes)}"
        return [Obstacle(f"{pair} are of different samples, {sizes} each")]
    return []


def withheld(first: MeasuredRun, other: MeasuredRun) -> tuple[str, ...]:
    """Return what makes some figures of two runs no comparison of what loaded the samples.

    `OTHER_BATCH`: a step is another amount of work, only what is per sample is comparable.
    `OTHER_STEP`: the emulated compute of a sample takes another time; wall, wait, rates and what
    is exposed follow from it, busy time does not.
    """
    a, b = first.facts, other.facts
    found = []
    if a.batch_size != b.batch_size:
        found.append(OTHER_BATCH)
    if _step_differs(a.compute.step_ns, a.batch_size, b.compute.step_ns, b.batch_size):
        found.append(OTHER_STEP)
    return tuple(found)


def _step_differs(
    a_ns: int | None, a_size: int | None, b_ns: int | None, b_size: int | None
) -> bool:
    if a_ns is None or b_ns is None:
        return (a_ns is None) != (b_ns is None)
    a_size, b_size = a_size or 1, b_size or 1
    # Steps scaled to a batch size are rounded to the nanosecond.
    return abs(a_ns * b_size - b_ns * a_size) > max(a_size, b_size)


def other_machine(first: MeasuredRun, other: MeasuredRun) -> tuple[str, ...]:
    """Return what of the machine differs, by name; ``("host",)``: another one of the same make."""

    def told(run: MeasuredRun, name: str) -> Any:
        return run.facts.machine.get(name)

    return tuple(name for name in SAME_MACHINE if told(first, name) != told(other, name))
