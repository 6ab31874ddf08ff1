"""``iobench check``: a run held against counts, a limit of exposed time, or a stored run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec.structs import replace

from iobench.analysis.intervals import (
    LONG_ENOUGH,
    Interval,
    StepSums,
    difference,
    quotient,
    step_sums,
)
from iobench.analysis.run import Run
from iobench.errors import OptionError, ProfileError
from iobench.findings.counts import (
    CountDifference,
    Counts,
    compare_counts,
    counts_of,
    read_counts,
    write_counts,
)
from iobench.report import units
from iobench.report.document import Document, Section, Sentence, sentences
from iobench.report.sentences import PARTS
from iobench.runs.reading import run_paths

if TYPE_CHECKING:
    from iobench.analysis.exposure_figures import Window
    from iobench.analysis.run import RankRun
    from iobench.report.document import Style

ONLY_RUN: Final = "run"
"""What a run is called that is alone in its directory."""
PASSED: Final = "passed"
REGRESSION: Final = "regression"
INCONCLUSIVE: Final = "inconclusive"
EXIT_CODES: Final = {PASSED: 0, INCONCLUSIVE: 4, REGRESSION: 3}
"""By what a gate concludes, the least grave first."""
STYLES: Final[dict[str, Style]] = {PASSED: "good", REGRESSION: "bad", INCONCLUSIVE: "fair"}
TITLES: Final = {
    "counts": "counts of {run}",
    "exposed": "exposed share of {run}, at most {limit}",
    "growth": "exposed time per sample of {run} against a stored run, at most {limit} more",
}
DOUBTS: Final = {
    "interval_includes_limit": "the interval contains the limit; measure longer",
    "short": f"run more: expected {LONG_ENOUGH}",
    "lost": "spans were lost, so waits may be missing",
    "unknown": "some of what is expected is unknown",
}
"""Why a gate concludes nothing."""


class Gate(msgspec.Struct, frozen=True, kw_only=True):
    """What a run was held against, and what came of it; None of what is not of its ``gate``."""

    gate: str  # counts, exposed or growth
    run: str
    outcome: str
    doubt: str | None
    limit_fraction: float | None = None
    exposed_fraction: float | None = None
    stored_fraction: float | None = None
    growth_fraction: float | None = None  # of the stored run's time per sample
    low_fraction: float | None = None  # of the exposed share, or of the growth
    high_fraction: float | None = None
    n_steps: int = 0
    lost_spans: int = 0
    window: Window | None = None
    differences: tuple[CountDifference, ...] = ()
    unknown: Mapping[str, str] = {}


class CheckResult(msgspec.Struct, frozen=True):
    """What comes of several gates together."""

    gates: tuple[Gate, ...]
    outcome: str
    exit_code: int


def conclude(
    low: float | None, high: float | None, limit: float, *, lost: int
) -> tuple[str, str | None]:
    """Return what follows from an interval and a limit, and why nothing does."""
    if low is None or high is None:
        return INCONCLUSIVE, "short"
    if lost:
        return INCONCLUSIVE, "lost"
    if high <= limit:
        return PASSED, None
    return (INCONCLUSIVE, "interval_includes_limit") if low <= limit else (REGRESSION, None)


def gate_counts(run: Path, file: Path) -> tuple[Gate, ...]:
    """Hold the counts of a run, or of each of several formats, against a file."""
    expected, runs = read_counts(file), _named_runs(run)
    if expected.keys() != runs.keys():
        raise ProfileError(
            f"{file}: expects counts of {', '.join(expected)}, but {run} has {', '.join(runs)}"
        )
    gates = []
    for name, each in runs.items():
        differences, unknown = compare_counts(expected[name], counts_of(each))
        outcome, doubt = (INCONCLUSIVE, "unknown") if unknown else (PASSED, None)
        if any(not of.less_work for of in differences):
            outcome, doubt = REGRESSION, None
        gate = Gate(gate="counts", run=name, outcome=outcome, doubt=doubt)
        gates.append(replace(gate, differences=differences, unknown=unknown))
    return tuple(gates)


def update_counts(run: Path, file: Path) -> dict[str, Counts]:
    """Write the counts of a run to a file, in place of what is in it."""
    counts_by_run = {name: counts_of(each) for name, each in _named_runs(run).items()}
    write_counts(file, counts_by_run)
    return counts_by_run


def gate_shares(run: Path, limit: float) -> tuple[Gate, ...]:
    """Hold the exposed share of each training process of each format against a limit."""
    return tuple(
        _gate(name, rank, limit) for name, each in _named_runs(run).items() for rank in each
    )


def gate_growth(
    run: Path, stored: Path, margin: float, *, any_machine: bool = False
) -> tuple[Gate, ...]:
    """Hold the exposed time per sample of a run against that of a stored one of the same work."""
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
            earlier = before.of_rank(rank.rank)
            windows = earlier.exposure.window, rank.exposure.window
            if {*windows} == {"recurring", "steady"}:
                raise _unlike(stored, "window", *windows, "; give both as many epochs")
            gates.append(_gate(name, rank, margin, earlier))
    return tuple(gates)


def _gate(name: str, rank: RankRun, limit: float, stored: RankRun | None = None) -> Gate:
    """Hold the exposed share of a training process, or its growth, against a limit."""
    part, sums, lost = rank.exposure.judged, _sums(rank), rank.exposure.lost_spans
    interval, before, gate = Interval(None), None, "exposed"
    if stored is not None:
        before, gate = _sums(stored), "growth"
        lost += stored.exposure.lost_spans
        if sums is not None and before is not None:
            interval = _growth(before, sums)
    elif sums is not None and (share := sums.quotient("wait", "wall")) is not None:
        interval = quotient(share)
    low, high = interval.low, interval.high
    if stored is None and low is not None and high is not None:
        low, high = max(low, 0.0), min(high, 1.0)
    outcome, doubt = conclude(low, high, limit, lost=lost)
    return Gate(
        gate=gate,
        run=name if rank.is_alone else f"{name}, rank {rank.rank}",
        outcome=outcome,
        doubt=doubt,
        limit_fraction=limit,
        exposed_fraction=None if sums is None else part.wait_fraction,
        stored_fraction=stored.exposure.judged.wait_fraction if before and stored else None,
        growth_fraction=None if stored is None else interval.value,
        low_fraction=low,
        high_fraction=high,
        n_steps=0 if sums is None else part.n_batches,
        lost_spans=lost,
        window=rank.exposure.window,
    )


def _sums(run: RankRun) -> StepSums | None:
    """Return the sums of the steps that are judged; None without a steady state."""
    window = run.exposure.window
    sums = None if window == "whole" else step_sums(run, window)
    return sums if sums is not None and sums.total("wall") else None


def _growth(old: StepSums, new: StepSums) -> Interval:
    """Return how much more exposed time per sample there is, of the old time per sample."""
    per = "samples" if new.total("samples") and old.total("samples") else "batches"
    waits, old_waits = new.quotient("wait", per), old.quotient("wait", per)
    if waits is None or old_waits is None:
        return Interval(None)
    grown, of = difference(old_waits, waits), (old.total("wall") or 1) / (old.total(per) or 1)
    if grown.value is None or grown.low is None or grown.high is None:
        return Interval(None)
    return Interval(grown.value / of, grown.low / of, grown.high / of)


def _unlike(stored: Path, what: str, old: object, new: object, more: str = "") -> OptionError:
    return OptionError(f"{stored}: has {what} {old}, expected {new} as of the new run{more}")


def _machine(facts: Mapping[str, Any]) -> str:
    """Return what makes machines alike; versions of the system do not count."""
    return ", ".join(f"{name} {facts.get(name) or 'unknown'}" for name in ("cpu_model", "cpus"))


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
    """Yield the counts that differ, and those that this run does not report."""
    for each in gate.differences:
        old, new = (
            units.count(value) if isinstance(value, int) else value or "none"
            for value in (each.expected, each.measured)
        )
        yield f"{each.name}: {new}, expected {old}{': less' if each.less_work else ''}"
    for name, why in gate.unknown.items():
        yield f"{name}: expected, but unknown here: {why}"
    if gate.differences:
        yield "if this is intended, use --update"


def _share_lines(gate: Gate) -> Iterator[str]:
    part, between, is_growth = "no steady state", "without an interval", gate.gate == "growth"
    if gate.window is not None and gate.window != "whole":
        part = f"{units.count(gate.n_steps)} steps, {PARTS[gate.window]}"
    exposed, spelled = units.fraction(gate.exposed_fraction), units.fraction
    if is_growth:
        spelled = units.signed_fraction
        yield f"exposed: {exposed} of {part}; stored run: {units.fraction(gate.stored_fraction)}"
    if gate.low_fraction is not None:
        between = f"{spelled(gate.low_fraction)} to {spelled(gate.high_fraction)}"
    if is_growth:
        growth = spelled(gate.growth_fraction)
        yield f"exposed time per sample: {growth} ({between}) of the stored time per sample"
    else:
        yield f"exposed: {exposed} ({between}) of {part}"
    if gate.doubt is not None:
        yield DOUBTS[gate.doubt]
