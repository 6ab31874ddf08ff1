"""``iobench check``: a run held against counts, a limit of exposed time, or a stored run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from iobench.analysis.intervals import Blocks, StepSums, difference, quotient, step_sums
from iobench.analysis.run import Run
from iobench.errors import OptionError, ProfileError
from iobench.findings.counts import (
    BOUNDS,
    CountDifference,
    Counts,
    compare_counts,
    counts_of,
    expected_counts,
    read_counts,
    write_counts,
)
from iobench.recording.kinds import Kind
from iobench.report import units
from iobench.report.document import Document, Section, Sentence, sentences
from iobench.report.sentences import PARTS
from iobench.runs.folders import run_paths

if TYPE_CHECKING:
    from iobench.analysis.exposure_figures import Window
    from iobench.analysis.run import RankRun
    from iobench.report.document import Style

ONLY_RUN: Final = "run"
"""What a run is called that is alone in its directory."""
OF_MACHINE: Final = ("cpu_model", "cpus", "system")
PASSED: Final = "passed"
REGRESSION: Final = "regression"
INCONCLUSIVE: Final = "inconclusive"
EXIT_CODES: Final = {PASSED: 0, INCONCLUSIVE: 4, REGRESSION: 3}
"""By what a gate concludes, the least grave first."""
STYLES: Final[dict[str, Style]] = {PASSED: "good", REGRESSION: "bad", INCONCLUSIVE: "fair"}
TITLES: Final = {
    "counts": "counts of {run}",
    "exposed": "exposed share of {run}, at most {limit}",
    "growth": (
        "exposed time of {run} against a stored run, at most {limit} of its time per sample more"
    ),
}
DOUBTS: Final = {
    "interval_includes_limit": "the interval contains the limit; measure longer",
    "short": (
        "fewer than 48 steady-state steps, or too few complete epochs after the first (four are "
        "enough, or two with 48 steps): run more"
    ),
    "lost": "spans were lost, so waits may be missing",
    "unknown": "too much of it has no known cause",
}
"""Why a gate concludes nothing."""


class ExposedShare(msgspec.Struct, frozen=True, kw_only=True):
    """How much of its time a training process waited, over what a long training sees.

    None and 0 where a run is too short for a steady state; of the time ``unknown_fraction`` was
    exposed without a known cause.
    """

    exposed_fraction: float | None = None
    low_fraction: float | None = None
    high_fraction: float | None = None
    unknown_fraction: float = 0.0
    n_steps: int = 0
    lost_spans: int = 0
    window: Window | None = None


class Gate(ExposedShare, frozen=True, kw_only=True):
    """What a run was held against, and what came of it; None of what is not of its ``gate``.

    Growth is of the stored run's time per sample, per step where samples are not known; the
    interval is then that of the growth.
    """

    gate: str  # counts, exposed or growth
    run: str
    outcome: str
    doubt: str | None
    limit_fraction: float | None = None
    stored_fraction: float | None = None
    growth_fraction: float | None = None
    n_equal: int | None = None
    differences: tuple[CountDifference, ...] = ()
    unknown: Mapping[str, str] = {}


class CheckResult(msgspec.Struct, frozen=True):
    """What comes of several gates together."""

    gates: tuple[Gate, ...]
    outcome: str
    exit_code: int


def exposed_share(run: RankRun) -> tuple[ExposedShare, StepSums | None]:
    """Return how much of its time a training process waited (`Exposure.judged`), and its sums."""
    exposure, window = run.exposure, run.exposure.window
    part, sums = exposure.judged, step_sums(run, window)
    blocks = None if sums is None else sums.quotient("wait", "wall")
    if window == "whole" or blocks is None or not part.wall_ns:
        return ExposedShare(lost_spans=exposure.lost_spans, window=window), None
    share = quotient(blocks)
    unknown_ns = sum(row.exposed_ns for row in part.stages if row.kind == Kind.UNKNOWN)
    return ExposedShare(
        exposed_fraction=part.wait_ns / part.wall_ns,
        low_fraction=None if share.low is None else max(share.low, 0.0),
        high_fraction=None if share.high is None else min(share.high, 1.0),
        unknown_fraction=unknown_ns / part.wall_ns,
        n_steps=part.n_batches,
        lost_spans=exposure.lost_spans,
        window=window,
    ), sums


def conclude(
    interval: tuple[float | None, float | None], limit: float, *, lost: int, unknown: float
) -> tuple[str, str | None]:
    """Return what follows from an interval and a limit: above it by known causes alone fails.

    Without the ``lost`` spans waits may be missing; what of it is ``unknown`` has no known cause.
    """
    low, high = interval
    if low is None or high is None:
        return INCONCLUSIVE, "short"
    if lost:
        return INCONCLUSIVE, "lost"
    if high <= limit:
        return PASSED, None
    if low <= limit:
        return INCONCLUSIVE, "interval_includes_limit"
    if low - unknown <= limit:
        return INCONCLUSIVE, "unknown"
    return REGRESSION, None


def gate_counts(run: Path, file: Path) -> tuple[Gate, ...]:
    """Hold the counts of a run, or of each of several formats, against a file."""
    expected, runs = read_counts(file), _named_runs(run)
    if expected.keys() != runs.keys():
        raise ProfileError(
            f"{file}: expects counts of {', '.join(expected)}, but {run} has {', '.join(runs)}; "
            "profile the same formats, or rewrite it with --update"
        )
    gates = []
    for name, each in runs.items():
        compared = compare_counts(expected[name], counts_of(each))
        doubt = None
        outcome = REGRESSION if any(not of.less_work for of in compared.differences) else PASSED
        if outcome == PASSED and compared.unknown:
            outcome, doubt = INCONCLUSIVE, "unknown"
        figures = msgspec.structs.asdict(compared)
        gates.append(Gate(gate="counts", run=name, outcome=outcome, doubt=doubt, **figures))
    return tuple(gates)


def update_counts(run: Path, file: Path) -> dict[str, Counts]:
    """Write the counts of a run to a file, in place of what is in it."""
    counts_by_run = {}
    for name, each in _named_runs(run).items():
        if any(of.role == "consumer" and not of.closed for of in each.data.processes):
            raise ProfileError(
                f"{each.path}: a training process was killed or is still running, so its counts "
                "are not reproducible; expected a run that has finished"
            )
        counts_by_run[name] = expected_counts(counts_of(each))
    write_counts(file, counts_by_run)
    return counts_by_run


def gate_shares(run: Path, limit: float) -> tuple[Gate, ...]:
    """Hold the exposed share of each training process of each format against a limit."""
    return tuple(
        _gate("exposed", name, rank, limit, exposed_share(rank)[0])
        for name, each in _named_runs(run).items()
        for rank in each
    )


def gate_growth(
    run: Path, stored: Path, margin: float, *, any_machine: bool = False
) -> tuple[Gate, ...]:
    """Hold the exposed time per sample of a run against that of a stored one of the same work.

    It is refused if they were measured on machines that are not alike, but for ``any_machine``.
    """
    new, old = _named_runs(run), _named_runs(stored)
    if new.keys() != old.keys():
        raise _unlike(stored, "formats", ", ".join(old), ", ".join(new))
    gates = []
    for name, each in new.items():
        before = old[name]
        if each.about.dataset != before.about.dataset:
            raise _unlike(stored, "dataset", before.about.dataset, each.about.dataset)
        if each.ranks != before.ranks:
            raise _unlike(stored, "training processes", len(before), len(each))
        here, there = _machine(each.about.machine), _machine(before.about.machine)
        if not any_machine and (here != there or "unknown" in here):
            raise _unlike(stored, "machine", there, here, ", or pass --any-machine")
        for rank in each:
            measured, earlier = exposed_share(rank), exposed_share(before.of_rank(rank.rank))
            window, other = measured[0].window, earlier[0].window
            if {window, other} == {"recurring", "steady"}:
                raise _unlike(stored, "window", other, window, "; give both as many epochs")
            share, growth = _growth(measured, earlier)
            gates.append(
                _gate("growth", name, rank, margin, share, earlier[0].exposed_fraction, growth)
            )
    return tuple(gates)


def _gate(
    gate: str,
    name: str,
    rank: RankRun,
    limit: float,
    share: ExposedShare,
    stored: float | None = None,
    growth: float | None = None,
) -> Gate:
    outcome, doubt = conclude(
        (share.low_fraction, share.high_fraction), limit,
        lost=share.lost_spans, unknown=share.unknown_fraction,
    )  # fmt: skip
    return Gate(
        gate=gate, run=name if rank.is_alone else f"{name}, rank {rank.rank}",
        outcome=outcome, doubt=doubt, limit_fraction=limit, stored_fraction=stored,
        growth_fraction=growth, **msgspec.structs.asdict(share),
    )  # fmt: skip


def _growth(
    measured: tuple[ExposedShare, StepSums | None], stored: tuple[ExposedShare, StepSums | None]
) -> tuple[ExposedShare, float | None]:
    """Return the share of the new run with the interval of its growth, and the growth."""
    (new, new_sums), (old, old_sums) = measured, stored
    share: dict[str, Any] = msgspec.structs.asdict(new)
    share |= {"low_fraction": None, "high_fraction": None, "unknown_fraction": 0.0}
    share["lost_spans"] += old.lost_spans
    growth = None
    if new_sums is not None and old_sums is not None:
        per = "samples" if new_sums.total("samples") and old_sums.total("samples") else "batches"
        waits, old_waits, walls, old_walls = (
            sums.quotient(amount, per) or Blocks(np.zeros(0), np.zeros(0))
            for amount in ("wait", "wall")
            for sums in (new_sums, old_sums)
        )
        grown, of = difference(old_waits, waits), old_walls.value or 1.0
        share["unknown_fraction"] = new.unknown_fraction * (walls.value or 0.0) / of
        if grown.value is not None and grown.low is not None and grown.high is not None:
            growth = grown.value / of
            share |= {"low_fraction": grown.low / of, "high_fraction": grown.high / of}
    return ExposedShare(**share), growth


def _unlike(stored: Path, what: str, old: object, new: object, more: str = "") -> OptionError:
    return OptionError(f"{stored}: has {what} {old}, expected {new} as of the new run{more}")


def _machine(facts: Mapping[str, Any]) -> str:
    """Return what makes machines alike; versions of the system do not count."""
    values = {name: str(facts.get(name) or "unknown") for name in OF_MACHINE}
    values["system"] = values["system"].partition(" ")[0]
    return ", ".join(f"{name} {value}" for name, value in values.items())


def check_result(gates: Sequence[Gate]) -> CheckResult:
    """Return what comes of gates: a regression counts more than an open one, that than a pass."""
    outcomes = {gate.outcome for gate in gates}
    gravest = [each for each in EXIT_CODES if each in outcomes][-1]
    return CheckResult(tuple(gates), gravest, EXIT_CODES[gravest])


def _named_runs(run: Path) -> dict[str, Run]:
    """Return the runs in a directory: one, or one for each format by its name."""
    return {ONLY_RUN if path == run else path.name: Run(path) for path in run_paths(run)}


def check_document(result: CheckResult) -> Document:
    """Return the outcome, then what each gate measured."""
    return Document(
        title=f"iobench check: {result.outcome}",
        sections=tuple(_section(number, gate) for number, gate in enumerate(result.gates)),
        figures=lambda: result,
    )


def _section(number: int, gate: Gate) -> Section:
    run = "the run" if gate.run == ONLY_RUN else gate.run
    title = TITLES[gate.gate].format(run=run, limit=units.fraction(gate.limit_fraction))
    lines = _count_lines(gate) if gate.gate == "counts" else _share_lines(gate)
    first = Sentence(f"{gate.outcome}: {title}", STYLES[gate.outcome])
    return Section(f"gate-{number}", "", (first, *sentences(lines)))


def _count_lines(gate: Gate) -> Iterator[str]:
    """Yield the counts that differ, those that this run does not report, and how many are equal."""
    for each in gate.differences:
        old, new = (
            units.count(value) if isinstance(value, int) else value or "none"
            for value in (each.expected, each.measured)
        )
        bound = "at most " if each.name in BOUNDS else ""
        yield f"{each.name}: {new}, expected {bound}{old}{': less' if each.less_work else ''}"
    for name, why in gate.unknown.items():
        yield f"{name}: expected, but unknown here: {why}"
    yield f"figures as expected: {units.count(gate.n_equal or 0)}"
    if gate.differences:
        yield "if this is intended, use --update"


def _share_lines(gate: Gate) -> Iterator[str]:
    part = "no steady state"
    if gate.window is not None and gate.window != "whole":
        part = f"{units.count(gate.n_steps)} steps, {PARTS[gate.window]}"
    exposed, is_growth = units.fraction(gate.exposed_fraction), gate.gate == "growth"
    between = "without an interval"
    if gate.low_fraction is not None:
        ends = (gate.low_fraction, gate.high_fraction)
        low, high = map(units.signed_fraction if is_growth else units.fraction, ends)
        between = f"{low} to {high}"
    if is_growth:
        growth = units.signed_fraction(gate.growth_fraction)
        yield f"exposed: {exposed} of {part}; stored run: {units.fraction(gate.stored_fraction)}"
        yield f"exposed time per sample: {growth} ({between}) of the stored time per sample"
        yield "no interval includes what differs from one run to the next"
    else:
        yield f"exposed: {exposed} ({between}) of {part}"
    if gate.unknown_fraction:
        yield f"without a known cause: {units.fraction(gate.unknown_fraction)}"
    if gate.doubt is not None:
        yield DOUBTS[gate.doubt]
