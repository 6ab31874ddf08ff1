"""``iobench check``: a run held against counts, a limit of exposed time, or a run that was kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum, IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from iobench.analysis.intervals import StepSums, difference, quotient, step_sums
from iobench.analysis.run import Run
from iobench.errors import OptionError, ProfileError
from iobench.findings.counts import (
    DIGESTS,
    STAGES,
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
from iobench.report.json_walk import to_plain
from iobench.report.sentences import PARTS, kept_words
from iobench.runs.folders import run_paths

if TYPE_CHECKING:
    from iobench.analysis.run import RankRun
    from iobench.report.document import Sign, Style

ONLY_RUN: Final = "run"
"""What a run is called that is alone in its directory."""
OF_MACHINE: Final = ("cpu_model", "cpus", "system")
MOST_LINES: Final = 40
NAMES: Final = {
    "used_nbytes": "bytes used",
    "read_nbytes": "bytes read",
    "handed_on_nbytes": "bytes delivered to the loop",
    "asked_nbytes": "bytes requested from the system",
    "peak_nbytes": "peak memory",
}


class Outcome(IntEnum):
    """What a gate concludes; the value is what the command exits with."""

    PASSED = 0
    REGRESSION = 3
    INCONCLUSIVE = 4


class Doubt(Enum):
    """Why a gate concludes nothing."""

    INCLUDES_LIMIT = "interval_includes_limit"
    SHORT = "short"
    LOST = "lost"
    UNKNOWN = "unknown"


DOUBTS: Final = {
    Doubt.INCLUDES_LIMIT: "the interval contains the limit; measure longer",
    Doubt.SHORT: (
        "there is no interval for fewer than 48 steady-state steps, nor for too few complete "
        "epochs after the first (four are enough, or two with 48 steps together); run more "
        "batches or epochs"
    ),
    Doubt.LOST: "spans were lost, so waits may be missing",
    Doubt.UNKNOWN: "too much of it has no known cause",
}
SHOWN: Final[dict[Outcome, tuple[Style, Sign]]] = {
    Outcome.PASSED: ("good", "passed"),
    Outcome.REGRESSION: ("bad", "failed"),
    Outcome.INCONCLUSIVE: ("fair", "undecided"),
}


class ExposedShare(msgspec.Struct, frozen=True, kw_only=True):
    """How much of its time a training process waited, over what a long training sees.

    None and 0 where a run is too short for a steady state; ``unknown_ns`` has no known cause.
    """

    exposed_fraction: float | None
    low_fraction: float | None
    high_fraction: float | None
    n_steps: int
    n_samples: int | None
    wall_ns: int
    wait_ns: int
    unknown_ns: int
    lost_spans: int
    window: str
    batches: int
    summed_batches: int


class CountsGate(CountsComparison, frozen=True, kw_only=True):
    """Counts of a run against those that were kept."""

    gate: str = "counts"
    run: str
    outcome: str
    doubt: Doubt | None


class ShareGate(ExposedShare, frozen=True, kw_only=True):
    """The exposed share of a training process against a limit."""

    gate: str = "exposed"
    run: str
    outcome: str
    doubt: Doubt | None
    limit_fraction: float


class GrowthGate(msgspec.Struct, frozen=True, kw_only=True):
    """The exposed time of a run per sample against that of one that was kept.

    Growth is of the stored run's time per sample, per step where samples are not known.
    """

    gate: str = "growth"
    run: str
    outcome: str
    doubt: Doubt | None
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


def exposed_share(run: RankRun) -> ExposedShare:
    """Return how much of its time a training process waited, with an interval at 95 %.

    Of its epochs as a long training has them, else of its steady state: `Exposure.judged`.
    """
    return _share_and_sums(run)[0]


def _share_and_sums(run: RankRun) -> tuple[ExposedShare, StepSums | None]:
    exposure = run.exposure
    is_known, part = exposure.window != "whole", exposure.judged
    sums = step_sums(run, exposure.window) if is_known else None
    blocks = None if sums is None else sums.quotient("wait", "wall")
    share = None if blocks is None else quotient(blocks)
    low, high = (None, None) if share is None else (share.low, share.high)
    unknown = [row.exposed_ns for row in part.stages if row.kind == Kind.UNKNOWN]
    return ExposedShare(
        exposed_fraction=part.wait_ns / part.wall_ns if is_known and part.wall_ns else None,
        low_fraction=None if low is None else max(low, 0.0),
        high_fraction=None if high is None else min(high, 1.0),
        n_steps=part.n_batches if is_known else 0,
        n_samples=part.n_samples if is_known else None,
        wall_ns=part.wall_ns if is_known else 0,
        wait_ns=part.wait_ns if is_known else 0,
        unknown_ns=sum(unknown) if is_known else 0,
        lost_spans=exposure.lost_spans,
        window=exposure.window,
        batches=exposure.whole.n_batches if is_known else 0,
        summed_batches=exposure.n_summed if is_known else 0,
    ), sums


def conclude(
    interval: tuple[float | None, float | None], limit: float, *, lost: int, unknown: float
) -> tuple[Outcome, Doubt | None]:
    """Return what follows from an interval and a limit: above it by known causes alone fails.

    Without the ``lost`` spans waits may be missing; what of it is ``unknown`` has no known cause.
    """
    low, high = interval
    if low is None or high is None:
        return Outcome.INCONCLUSIVE, Doubt.SHORT
    if lost:
        return Outcome.INCONCLUSIVE, Doubt.LOST
    if high <= limit:
        return Outcome.PASSED, None
    if low <= limit:
        return Outcome.INCONCLUSIVE, Doubt.INCLUDES_LIMIT
    if low - unknown <= limit:
        return Outcome.INCONCLUSIVE, Doubt.UNKNOWN
    return Outcome.REGRESSION, None


def gate_counts(run: Path, file: Path) -> tuple[CountsGate, ...]:
    """Hold the counts of a run, or of each of several formats, against a file.

    Raises
    ------
    ProfileError, MissingFileError, FileFormatError
        If there is no run whose counts repeat, or no file of counts.
    """
    expected, runs = read_counts(file), _named_runs(run)
    gates = []
    for name, each in runs.items():
        if name not in expected:
            raise ProfileError(
                f"{file}: expects nothing of {name}, only of {', '.join(expected) or 'no run'}; "
                "rewrite it with --update"
            )
        compared = compare_counts(expected[name], counts_of(each))
        outcome = Outcome.INCONCLUSIVE if compared.unknown else Outcome.PASSED
        outcome = Outcome.REGRESSION if compared.differences else outcome
        doubt = Doubt.UNKNOWN if outcome == Outcome.INCONCLUSIVE else None
        gates.append(
            CountsGate(
                run=name,
                outcome=_word(outcome),
                doubt=doubt,
                **msgspec.structs.asdict(compared),
            )
        )
    if missing := sorted(expected.keys() - runs.keys()):
        raise ProfileError(
            f"{file}: expects {', '.join(missing)} too, which {run} does not have; profile all "
            "formats, or rewrite it with --update"
        )
    return tuple(gates)


def keep_counts(run: Path, file: Path) -> dict[str, Counts]:
    """Write the counts of a run to a file; what is in it already is replaced.

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
    return tuple(
        _share_gate(_rank_name(name, rank), exposed_share(rank), limit)
        for name, each in _named_runs(run).items()
        for rank in each
    )


def _share_gate(name: str, share: ExposedShare, limit: float) -> ShareGate:
    outcome, doubt = conclude(
        (share.low_fraction, share.high_fraction),
        limit,
        lost=share.lost_spans,
        unknown=share.unknown_ns / share.wall_ns if share.wall_ns else 0.0,
    )
    return ShareGate(
        run=name, outcome=_word(outcome), doubt=doubt, limit_fraction=limit,
        **msgspec.structs.asdict(share),
    )  # fmt: skip


def gate_growth(
    run: Path, stored: Path, margin: float, *, any_machine: bool = False
) -> tuple[GrowthGate, ...]:
    """Hold the exposed time per sample of a run against that of one that was kept.

    Raises
    ------
    OptionError
        If they were measured on machines that are not alike, unless ``any_machine`` says so; or if
        they are of other datasets, or have other formats or training processes.
    """
    new, old = _named_runs(run), _named_runs(stored)
    if new.keys() != old.keys():
        raise OptionError(
            f"{stored}: has {', '.join(old)}, but {run} has {', '.join(new)}; "
            "expected the same formats"
        )
    gates = []
    for name, each in new.items():
        before = old[name]
        if each.about.dataset != before.about.dataset:
            raise OptionError(
                f"{stored}: dataset is {before.about.dataset}, but {run} has "
                f"{each.about.dataset}; expected the same dataset"
            )
        unlike = _unlike_machines(each.about.machine, before.about.machine)
        if unlike and not any_machine:
            raise OptionError(
                f"{stored}: was measured on another machine ({'; '.join(unlike)}); compare times "
                "from similar machines, or pass --any-machine"
            )
        if each.ranks != before.ranks:
            raise OptionError(
                f"{stored}: has {len(before)} training processes, but {run} has {len(each)}; "
                "expected the same number"
            )
        for rank in each:
            measured, retained = _share_and_sums(rank), _share_and_sums(before.of_rank(rank.rank))
            windows = {measured[0].window, retained[0].window}
            if len(windows) > 1 and "whole" not in windows:
                with_epochs = stored if retained[0].window == "recurring" else run
                raise OptionError(
                    f"{with_epochs}: has complete epochs after the first, which include their "
                    "start-up, and the other run has none; expected as many epochs in both"
                )
            gates.append(_growth_gate(_rank_name(name, rank), measured, retained, margin))
    return tuple(gates)


def _growth_gate(
    name: str,
    measured: tuple[ExposedShare, StepSums | None],
    stored: tuple[ExposedShare, StepSums | None],
    margin: float,
) -> GrowthGate:
    (new, new_sums), (old, old_sums) = measured, stored
    by_sample = bool(new.n_samples and old.n_samples)
    amounts = (new_sums, "wait"), (old_sums, "wait"), (old_sums, "wall")
    waits, old_waits, walls = (
        sums and sums.quotient(amount, "samples" if by_sample else "batches")
        for sums, amount in amounts
    )
    growth: list[float | None] = [None, None, None]
    if waits and old_waits and walls and walls.value:
        grown = difference(old_waits, waits)
        ends = (grown.value, grown.low, grown.high)
        if None not in ends:
            growth = [None if each is None else each / walls.value for each in ends]
    sizes = [(each.n_samples if by_sample else each.n_steps) or 1 for each in (new, old)]
    old_wall = old.wall_ns / sizes[1]
    outcome, doubt = conclude(
        (growth[1], growth[2]),
        margin,
        lost=new.lost_spans + old.lost_spans,
        unknown=new.unknown_ns / sizes[0] / old_wall if old_wall else 0.0,
    )
    return GrowthGate(
        run=name, outcome=_word(outcome), doubt=doubt, margin_fraction=margin,
        growth_fraction=growth[0], low_fraction=growth[1], high_fraction=growth[2],
        measured=new, stored=old,
    )  # fmt: skip


def check_result(gates: Sequence[Gate]) -> CheckResult:
    """Return what comes of gates: a regression counts more than an open one, that than a pass."""
    order = Outcome.REGRESSION, Outcome.INCONCLUSIVE, Outcome.PASSED
    outcomes = {Outcome[gate.outcome.upper()] for gate in gates}
    worst = next((each for each in order if each in outcomes), Outcome.PASSED)
    return CheckResult(tuple(gates), _word(worst), int(worst))


def _word(outcome: Outcome) -> str:
    return outcome.name.lower()


def _named_runs(run: Path) -> dict[str, Run]:
    """Return the runs in a directory: one, or one for each format by its name."""
    paths = run_paths(run)
    return {ONLY_RUN if path == run else path.name: Run(path) for path in paths}


def _rank_name(name: str, run: RankRun) -> str:
    return name if run.is_alone else f"{name}, rank {run.rank}"


def _unlike_machines(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Return in what two machines differ, or are unknown; versions of the system do not count."""
    unlike = []
    for name in OF_MACHINE:
        values = [str(each.get(name) or "") for each in (one, other)]
        if name == "system":
            values = [each.partition(" ")[0] for each in values]
        if not values[0] or values[0] != values[1]:
            unlike.append(f"{name}: {one.get(name, 'unknown')}, not {other.get(name, 'unknown')}")
    return unlike


def check_document(result: CheckResult) -> Document:
    """Return the outcome, then what each gate measured."""
    return Document(
        title=f"iobench check: {result.outcome}",
        sections=tuple(_gate_section(number, gate) for number, gate in enumerate(result.gates)),
        figures=lambda: to_plain(result),
        sign=SHOWN[Outcome(result.exit_code)][1],
    )


def _gate_section(number: int, gate: Gate) -> Section:
    match gate:
        case CountsGate():
            title, lines = f"counts of {_run(gate.run)}", [*_count_lines(gate)]
        case ShareGate():
            title = (
                f"exposed share of {_run(gate.run)}{_kept('of it', gate)}, at most "
                f"{units.fraction(gate.limit_fraction)}"
            )
            lines = [*_share_lines("exposed", gate)]
        case GrowthGate():
            title = (
                f"exposed time of {_run(gate.run)}{_kept('of it', gate.measured)} against a stored "
                f"run{_kept('of that', gate.stored)}, at most "
                f"{units.fraction(gate.margin_fraction)} of its time per sample more"
            )
            lines = [*_growth_lines(gate)]
    if gate.doubt is not None and gate.gate != "counts":
        lines.append(DOUBTS[gate.doubt])
    first = Sentence(f"{gate.outcome}: {title}", *SHOWN[Outcome[gate.outcome.upper()]])
    return Section(f"gate-{number}", "", (first, *sentences(lines)))


def _run(name: str) -> str:
    return "the run" if name == ONLY_RUN else name


def _kept(whose: str, share: ExposedShare) -> str:
    retained = kept_words(share.batches, share.summed_batches)
    return f" ({whose}, {retained})" if retained else ""


def _count_lines(gate: CountsGate) -> Iterator[str]:
    """Yield the counts that differ, those that this run does not report, and how many are equal."""
    for differences, suffix in ((gate.differences, ""), (gate.improvements, ": less")):
        for each in differences[:MOST_LINES]:
            yield f"{_difference(each)}{suffix}"
        if len(differences) > MOST_LINES:
            yield f"and {len(differences) - MOST_LINES} more{suffix}"
    for name, why in gate.unknown.items():
        yield f"{_count_name(name)}: expected, but unknown here: {why}"
    yield f"{units.count(gate.n_equal)} figure{'s' if gate.n_equal != 1 else ''} as expected"
    if gate.not_expected:
        yield f"not in the file: {', '.join(map(_count_name, gate.not_expected))}"
    if gate.differences:
        yield "if this is intended, use --update"
    elif gate.improvements:
        yield "less work than the file expects passes; use --update to require it of later runs"


def _difference(difference: CountDifference) -> str:
    name, how = _count_name(difference.name), difference.how
    old, new = difference.expected, difference.measured
    if how == "at_most" and isinstance(old, int) and isinstance(new, int):
        return f"{name}: {units.nbytes(new)}, expected at most {units.nbytes(old)}"
    suffix = " per sample" if how == "per_sample" else ""
    return f"{name}{suffix}: {_value(new)}, expected {_value(old)}"


def _value(value: float | str | None) -> str:
    if value is None or isinstance(value, str):
        return value or "none"
    return units.count(int(value)) if value == int(value) else units.number(value)


def _count_name(name: str) -> str:
    """Return ``bytes of read`` for ``stages/read/nbytes``."""
    if name.startswith(STAGES):
        stage, _, what = name.removeprefix(STAGES).rpartition("/")
        return f"{'spans' if what == 'spans' else 'bytes'} of {stage}"
    if name.startswith(DIGESTS):
        loader, _, epoch = name.removeprefix(DIGESTS).partition("/")
        of = "" if loader == "profile" else f" of loader {loader}"
        return f"digest of the samples{of} in epoch {epoch}"
    return NAMES.get(name, name)


def kept_lines(kept: Mapping[str, Counts]) -> Iterator[str]:
    """Yield how much was written of each run, and what of it is unknown."""
    for run, expected in kept.items():
        figures = [*expected.exact.items(), *expected.at_most.items()]
        unknown = [_count_name(name) for name, value in figures if value is None]
        end = f"; unknown, so not compared: {', '.join(unknown)}" if unknown else ""
        yield f"{_run(run)}: {len(figures) - len(unknown)} figures{end}"


def _growth_lines(gate: GrowthGate) -> Iterator[str]:
    yield from _share_lines("exposed", gate.measured)
    yield from _share_lines("stored run", gate.stored)
    ends = gate.growth_fraction, gate.low_fraction, gate.high_fraction
    if gate.growth_fraction is not None:
        grown, low, high = (units.signed_fraction(each or 0.0) for each in ends)
        yield f"exposed time per sample: {grown} ({low} to {high}) of the stored time per sample"
    yield "no interval includes what differs from one run to the next"


def _share_lines(what: str, share: ExposedShare) -> Iterator[str]:
    interval = "without an interval"
    if share.low_fraction is not None:
        interval = f"{units.fraction(share.low_fraction)} to {units.fraction(share.high_fraction)}"
    part = "no steady state"
    if share.window != "whole":
        part = f"{units.count(share.n_steps)} steps, {PARTS[share.window]}"  # type: ignore[index]
    yield f"{what}: {units.fraction(share.exposed_fraction)} ({interval}) of {part}"
    if share.unknown_ns:
        unknown = units.fraction(share.unknown_ns / share.wall_ns)
        yield f"of this, without a known cause: {unknown}"
