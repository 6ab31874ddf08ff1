"""``iobench check``: a run held against counts, a limit of exposed time, or a stored run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from iobench.analysis.intervals import (
    Blocks,
    Interval,
    StepSums,
    difference,
    quotient,
    step_sums,
)
from iobench.analysis.run import Run
from iobench.errors import OptionError, ProfileError
from iobench.findings.counts import (
    BOUNDS,
    CountDifference,
    Counts,
    CountsComparison,
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
MOST_LINES: Final = 40
PASSED: Final = "passed"
REGRESSION: Final = "regression"
INCONCLUSIVE: Final = "inconclusive"
EXIT_CODES: Final = {PASSED: 0, INCONCLUSIVE: 4, REGRESSION: 3}
"""By what a gate concludes, the least grave first."""
STYLES: Final[dict[str, Style]] = {PASSED: "good", REGRESSION: "bad", INCONCLUSIVE: "fair"}
DOUBTS: Final = {
    "interval_includes_limit": "the interval contains the limit; measure longer",
    "short": (
        "there is no interval for fewer than 48 steady-state steps, nor for too few complete "
        "epochs after the first (four are enough, or two with 48 steps together); run more "
        "batches or epochs"
    ),
    "lost": "spans were lost, so waits may be missing",
    "unknown": "too much of it has no known cause",
}
"""Why a gate concludes nothing."""
Concluded = tuple[str, str | None]


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
    lost_spans: int
    window: Window


class CountsGate(CountsComparison, frozen=True, kw_only=True):
    """Counts of a run against those of a file."""

    gate: str = "counts"
    run: str
    outcome: str
    doubt: str | None


class ShareGate(ExposedShare, frozen=True, kw_only=True):
    """The exposed share of a training process against a limit."""

    gate: str = "exposed"
    run: str
    outcome: str
    doubt: str | None
    limit_fraction: float


class GrowthGate(msgspec.Struct, frozen=True, kw_only=True):
    """The exposed time of a run per sample against that of a stored one.

    Growth is of the stored run's time per sample, per step where samples are not known.
    """

    gate: str = "growth"
    run: str
    outcome: str
    doubt: str | None
    margin_fraction: float
    growth_fraction: float | None
    low_fraction: float | None
    high_fraction: float | None
    measured: ExposedShare
    stored: ExposedShare


Gate = CountsGate | ShareGate | GrowthGate


class CheckResult(msgspec.Struct, frozen=True):
    """What comes of several gates together."""

    gates: tuple[Gate, ...]
    outcome: str
    exit_code: int


def exposed_share(run: RankRun) -> tuple[ExposedShare, StepSums | None]:
    """Return how much of its time a training process waited, and the sums of it.

    Of its epochs as a long training has them, else of its steady state: `Exposure.judged`.
    """
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
) -> Concluded:
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


def gate_counts(run: Path, file: Path) -> tuple[CountsGate, ...]:
    """Hold the counts of a run, or of each of several formats, against a file.

    Raises
    ------
    ProfileError, MissingFileError, FileFormatError
        If there is no run whose counts repeat, or no file of counts of the same formats.
    """
    expected, runs = read_counts(file), _named_runs(run)
    if expected.keys() != runs.keys():
        raise ProfileError(
            f"{file}: expects counts of {', '.join(expected)}, but {run} has {', '.join(runs)}; "
            "profile the same formats, or rewrite it with --update"
        )
    gates = []
    for name, each in runs.items():
        compared = compare_counts(expected[name], counts_of(each))
        concluded: Concluded = PASSED, None
        if compared.differences:
            concluded = REGRESSION, None
        elif compared.unknown:
            concluded = INCONCLUSIVE, "unknown"
        figures = msgspec.structs.asdict(compared)
        gates.append(CountsGate(run=name, outcome=concluded[0], doubt=concluded[1], **figures))
    return tuple(gates)


def update_counts(run: Path, file: Path) -> dict[str, Counts]:
    """Write the counts of a run to a file, in place of what is in it.

    Raises
    ------
    ProfileError
        If there is no run whose counts repeat, or it did not come to its end.
    StorageError
        If the file cannot be written.
    """
    counts_by_run = {}
    for name, each in _named_runs(run).items():
        counts = counts_of(each)
        if any(of.role == "consumer" and not of.closed for of in each.data.processes):
            raise ProfileError(
                f"{each.path}: a training process was killed or is still running, so its counts "
                "are not reproducible; expected a run that has finished"
            )
        counts_by_run[name] = expected_counts(counts)
    write_counts(file, counts_by_run)
    return counts_by_run


def gate_shares(run: Path, limit: float) -> tuple[ShareGate, ...]:
    """Hold the exposed share of each training process of each format against a limit."""
    gates = []
    for name, rank in ((name, rank) for name, each in _named_runs(run).items() for rank in each):
        share, _ = exposed_share(rank)
        interval = share.low_fraction, share.high_fraction
        unknown = share.unknown_fraction
        outcome, doubt = conclude(interval, limit, lost=share.lost_spans, unknown=unknown)
        figures = msgspec.structs.asdict(share) | {"limit_fraction": limit}
        named = _rank_name(name, rank)
        gates.append(ShareGate(run=named, outcome=outcome, doubt=doubt, **figures))
    return tuple(gates)


def gate_growth(
    run: Path, stored: Path, margin: float, *, any_machine: bool = False
) -> tuple[GrowthGate, ...]:
    """Hold the exposed time per sample of a run against that of a stored one.

    Raises
    ------
    OptionError
        If they were measured on machines that are not alike, unless ``any_machine`` says so; or if
        they are of other datasets, or have other formats, training processes or epochs.
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
            shares = exposed_share(rank), exposed_share(before.of_rank(rank.rank))
            window, other = shares[0][0].window, shares[1][0].window
            if {window, other} == {"recurring", "steady"}:
                raise _unlike(stored, "window", other, window, "; give both as many epochs")
            gates.append(_growth_gate(_rank_name(name, rank), *shares, margin))
    return tuple(gates)


def _unlike(stored: Path, what: str, old: object, new: object, more: str = "") -> OptionError:
    return OptionError(f"{stored}: has {what} {old}, expected {new} as of the new run{more}")


def _machine(facts: Mapping[str, Any]) -> str:
    """Return what makes machines alike; versions of the system do not count."""
    values = {name: str(facts.get(name) or "unknown") for name in OF_MACHINE}
    values["system"] = values["system"].partition(" ")[0]
    return ", ".join(f"{name} {value}" for name, value in values.items())


def _growth_gate(
    name: str,
    measured: tuple[ExposedShare, StepSums | None],
    stored: tuple[ExposedShare, StepSums | None],
    margin: float,
) -> GrowthGate:
    (new, new_sums), (old, old_sums) = measured, stored
    growth, unknown = Interval(None), 0.0
    if new_sums is not None and old_sums is not None:
        per = "samples" if new_sums.total("samples") and old_sums.total("samples") else "batches"
        waits, old_waits, walls, old_walls = (
            sums.quotient(amount, per) or Blocks(np.zeros(0), np.zeros(0))
            for amount in ("wait", "wall")
            for sums in (new_sums, old_sums)
        )
        grown, of = difference(old_waits, waits), old_walls.value or 1.0
        unknown = new.unknown_fraction * (walls.value or 0.0) / of
        if grown.value is not None and grown.low is not None and grown.high is not None:
            growth = Interval(grown.value / of, grown.low / of, grown.high / of)
    n_lost = new.lost_spans + old.lost_spans
    outcome, doubt = conclude((growth.low, growth.high), margin, lost=n_lost, unknown=unknown)
    return GrowthGate(
        run=name, outcome=outcome, doubt=doubt, margin_fraction=margin,
        growth_fraction=growth.value, low_fraction=growth.low, high_fraction=growth.high,
        measured=new, stored=old,
    )  # fmt: skip


def check_result(gates: Sequence[Gate]) -> CheckResult:
    """Return what comes of gates: a regression counts more than an open one, that than a pass."""
    outcomes = {gate.outcome for gate in gates}
    gravest = [each for each in EXIT_CODES if each in outcomes][-1]
    return CheckResult(tuple(gates), gravest, EXIT_CODES[gravest])


def _named_runs(run: Path) -> dict[str, Run]:
    """Return the runs in a directory: one, or one for each format by its name."""
    return {ONLY_RUN if path == run else path.name: Run(path) for path in run_paths(run)}


def _rank_name(name: str, run: RankRun) -> str:
    return name if run.is_alone else f"{name}, rank {run.rank}"


def check_document(result: CheckResult) -> Document:
    """Return the outcome, then what each gate measured."""
    return Document(
        title=f"iobench check: {result.outcome}",
        sections=tuple(_gate_section(number, gate) for number, gate in enumerate(result.gates)),
        figures=lambda: result,
    )


def _gate_section(number: int, gate: Gate) -> Section:
    match gate:
        case CountsGate():
            title, lines = f"counts of {_run(gate.run)}", [*_count_lines(gate)]
        case ShareGate():
            limit = units.fraction(gate.limit_fraction)
            title = f"exposed share of {_run(gate.run)}, at most {limit}"
            lines = [*_share_lines("exposed", gate)]
        case GrowthGate():
            limit = units.fraction(gate.margin_fraction)
            title = (
                f"exposed time of {_run(gate.run)} against a stored run, at most {limit} of its "
                "time per sample more"
            )
            lines = [*_share_lines("exposed", gate.measured)]
            lines += _share_lines("stored run", gate.stored)
            if gate.growth_fraction is not None:
                ends = gate.growth_fraction, gate.low_fraction, gate.high_fraction
                grown, low, high = (units.signed_fraction(each or 0.0) for each in ends)
                lines.append(
                    f"exposed time per sample: {grown} ({low} to {high}) of the stored time per "
                    "sample"
                )
            lines.append("no interval includes what differs from one run to the next")
    if gate.doubt is not None and gate.gate != "counts":
        lines.append(DOUBTS[gate.doubt])
    first = Sentence(f"{gate.outcome}: {title}", STYLES[gate.outcome])
    return Section(f"gate-{number}", "", (first, *sentences(lines)))


def _run(name: str) -> str:
    return "the run" if name == ONLY_RUN else name


def _count_lines(gate: CountsGate) -> Iterator[str]:
    """Yield the counts that differ, those that this run does not report, and how many are equal."""
    for differences, suffix in ((gate.differences, ""), (gate.improvements, ": less")):
        for each in differences[:MOST_LINES]:
            yield f"{_difference(each)}{suffix}"
        if len(differences) > MOST_LINES:
            yield f"and {len(differences) - MOST_LINES} more{suffix}"
    for name, why in gate.unknown.items():
        yield f"{name}: expected, but unknown here: {why}"
    yield f"{units.count(gate.n_equal)} figure{'s' if gate.n_equal != 1 else ''} as expected"
    if gate.not_expected:
        yield f"not in the file: {', '.join(gate.not_expected)}"
    if gate.differences:
        yield "if this is intended, use --update"
    elif gate.improvements:
        yield "less work than the file expects passes; use --update to require it of later runs"


def _difference(each: CountDifference) -> str:
    old, new = (
        units.count(value) if isinstance(value, int) else value or "none"
        for value in (each.expected, each.measured)
    )
    return f"{each.name}: {new}, expected {'at most ' * (each.name in BOUNDS)}{old}"


def written_lines(written: Mapping[str, Counts]) -> Iterator[str]:
    """Yield how much was written of each run, and what of it is unknown."""
    for run, expected in written.items():
        figures = [*expected.exact.items(), *expected.at_most.items()]
        unknown = [name for name, value in figures if value is None]
        end = f"; unknown, so not compared: {', '.join(unknown)}" if unknown else ""
        yield f"{_run(run)}: {len(figures) - len(unknown)} figures{end}"


def _share_lines(what: str, share: ExposedShare) -> Iterator[str]:
    interval = "without an interval"
    if share.low_fraction is not None:
        interval = f"{units.fraction(share.low_fraction)} to {units.fraction(share.high_fraction)}"
    part = "no steady state"
    if share.window != "whole":
        part = f"{units.count(share.n_steps)} steps, {PARTS[share.window]}"
    yield f"{what}: {units.fraction(share.exposed_fraction)} ({interval}) of {part}"
    if share.unknown_fraction:
        yield f"of this, without a known cause: {units.fraction(share.unknown_fraction)}"
