"""A comparison as a document: names, a table for each pair, what ratios do not say, samples."""

from __future__ import annotations

from math import log2
from typing import TYPE_CHECKING, Any, Final

from iobench.analysis.intervals import BLOCKS
from iobench.analysis.step_sums import BUSY, EXPOSED, FEWEST_TURNS
from iobench.findings.compare.comparable import OTHER_BATCH, OTHER_STEP
from iobench.findings.compare.figures import BETWEEN, TURNS
from iobench.findings.compare.samples_compared import samples_sentences
from iobench.findings.metrics.figures import mean_of, own_title
from iobench.recording.kinds import stage_title
from iobench.report import units
from iobench.report.document import (
    NOT_APPLICABLE,
    Bar,
    BarPart,
    ByteRate,
    Column,
    Count,
    Document,
    Duration,
    Ratio,
    SampleRate,
    Section,
    Sentence,
    Share,
    Table,
    sentences,
)
from iobench.report.json_walk import to_plain
from iobench.report.sentences import PART_NAMES, PARTS, kept_words
from iobench.report.suite_words import figure_cell

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from iobench.analysis.job_figures import JobTime
    from iobench.findings.compare.figures import (
        ComparedFigure,
        ComparedRun,
        Comparison,
        PairComparison,
    )
    from iobench.report.document import Block, Cell, Quantity

NAMES: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
N_STAGES: Final = 12
CELLS: Final[dict[str, type[Quantity]]] = {
    "ns": Duration,
    "per_s": SampleRate,
    "bytes_per_s": ByteRate,
    "fraction": Share,
}
WORTH_SAYING: Final = 0.01
"""Share of a job from which a part of it is a row."""
RATES: Final = ("per_s", "bytes_per_s")
WIDEST: Final = 10.0
"""Powers of two to either side: a longer interval is cut off there, its numbers stand beside it."""
NO_DIFFERENCE: Final = "no difference that these runs can resolve"
REASONS: Final = {
    OTHER_BATCH: "batch sizes differ, so a step is a different amount of work",
    OTHER_STEP: (
        "the emulated compute time per sample differs, which changes waits, rates and exposed times"
    ),
}
FEW_RUNS: Final = 4


def comparison_document(found: Comparison) -> Document:
    """Return runs side by side, what was different about them, and whether samples are the same."""
    names = [*NAMES[: len(found.runs)]]
    others = names[1:]
    called = [_called(name, run) for name, run in zip(names, found.runs, strict=True)]
    waved = [Sentence(f"Compared nevertheless: {why}.", "caution") for why in found.waved]
    samples = [
        each
        for name, told in zip(others, found.samples, strict=False)
        for each in samples_sentences(told, NAMES[0], name)
    ]
    return Document(
        title="Runs compared",
        sections=(
            Section("runs", "", (*called, *waved)),
            *(
                _pair_section(found, pair, name)
                for name, pair in zip(others, found.pairs, strict=True)
            ),
            Section("whole", "Whole runs", (_whole_table(found, names), *_about(found, names))),
            *((Section("samples", "", tuple(samples)),) if samples else ()),
        ),
        figures=lambda: to_plain(found),
    )


def _called(name: str, run: ComparedRun) -> Sentence:
    """Return what a run is called, and which batches of one too long to be kept are compared."""
    kept = [
        kept_words(sum(part.n_batches for part in each.parts("whole")), each.n_folded)
        for each in run.members
    ]
    names = dict.fromkeys(each.facts.name for each in run.members)
    told = "; ".join(filter(None, (*names, *kept)))
    return Sentence(f"{name}: {run.name}{told and f': {told}'}", "strong")


def _pair_section(found: Comparison, pair: PairComparison, name: str) -> Section:
    """Return the figures of a run beside those of the first: the loop's, then stage by stage."""
    loop = [figure for figure in pair.figures if not figure.stage]
    blocks: list[Block] = [_table("", "", loop, name)]
    for prefix in (BUSY, EXPOSED):
        figures = [figure for figure in pair.figures if figure.key.startswith(prefix)]
        figures = [figure for figure in figures if any(figure.values)][:N_STAGES]
        if figures:
            what = figures[0].name.removeprefix(f"{figures[0].stage}, ")
            blocks.append(_table(f"Stages, {what}", "stage", figures, name))
    title = f"{name} against {NAMES[0]} ({PARTS[found.window]})"
    return Section(f"pair-{name}", title, (*blocks, *_worth(pair, NAMES[0], name)))


def _table(title: str, heading: str, figures: Sequence[ComparedFigure], name: str) -> Table:
    headings = (heading, NAMES[0], name, f"{name}/{NAMES[0]}", "95 % interval", "differs")
    return Table(
        title=title,
        columns=tuple(map(Column, headings)),
        rows=tuple(
            (
                stage_title(figure.stage) or figure.name,
                *(CELLS[figure.unit](value) for value in figure.values),
                *_ratio(figure, name),
            )
            for figure in figures
        ),
        bars=_bars(figures),
    )


def _ratio(figure: ComparedFigure, name: str) -> tuple[Cell, Cell, Cell]:
    interval = figure.interval
    if figure.withheld:
        return NOT_APPLICABLE, NOT_APPLICABLE, "withheld"
    if interval.value is None:
        there = [bool(value) for value in figure.values]
        only = f"only {NAMES[0] if there[0] else name}" if sum(there) == 1 else NOT_APPLICABLE
        return NOT_APPLICABLE, NOT_APPLICABLE, only
    ratio = Ratio(interval.value)
    if interval.low is None or interval.high is None:
        return ratio, NOT_APPLICABLE, NOT_APPLICABLE
    between = f"{units.ratio(interval.low)} to {units.ratio(interval.high)}"
    word = "more" if interval.value > 1 else "less"
    return ratio, between, word if interval.differs else "no"


def _bars(figures: Sequence[ComparedFigure]) -> tuple[Bar, ...]:
    """Return each interval from its low to its high end, and where a ratio of 1 lies."""
    ends = [_ends(figure) for figure in figures]
    told = [end for pair in ends for end in pair]
    if not told:
        return ()
    first, last = min(0.0, *told), max(0.0, *told)
    thin = 0.004 * (last - first)

    def bar(figure: ComparedFigure, pair: tuple[float, ...]) -> Bar:
        kind, parts, at = _judged(figure), [], first
        places = [(0.0, 0.0, ONE)]
        if pair:
            low, high = pair
            cut = min(max(0.0, low), high)
            places += [(low, cut, kind), (cut, high, kind)] if cut == 0 else [(low, high, kind)]
        for start, end, what in sorted(places, key=lambda each: each[:2]):
            if start > at:
                parts.append(BarPart("gap", start - at))
            parts.append(BarPart(what, max(end - start, thin), WHAT[what]))
            at = max(at, start, end)
        return Bar(tuple(parts))

    return tuple(bar(figure, pair) for figure, pair in zip(figures, ends, strict=True))


def _ends(figure: ComparedFigure) -> tuple[float, ...]:
    """Return between which powers of two a ratio lies; nothing without an interval."""
    low, high = figure.interval.low, figure.interval.high
    if low is None or high is None:
        return ()
    return tuple(min(max(log2(end), -WIDEST), WIDEST) for end in (low, high))


ONE: Final = "one"
WHAT: Final = {
    ONE: "ratio of 1",
    "better": "interval of a ratio that is better",
    "worse": "interval of a ratio that is worse",
    "none": "interval that holds 1",
}


def _judged(figure: ComparedFigure) -> str:
    """Return whether a difference is for the better: shorter times, higher rates."""
    interval = figure.interval
    if not interval.differs or interval.value is None:
        return "none"
    return "better" if (interval.value > 1) == (figure.unit in RATES) else "worse"


def _worth(pair: PairComparison, a: str, b: str) -> Iterator[Sentence]:
    """Yield what a run's ratios to the first are of, and what they do not say."""
    yield _basis(pair, a, b)
    if any(each.interval.low is not None for each in pair.figures):
        yield Sentence(
            f"In the column 'differs', no means {NO_DIFFERENCE}: the interval contains 1. At 95 %, "
            "one interval in 20 misses, so among many rows one may differ by chance."
        )
    for name, needed in zip((a, b), pair.forgetful_from, strict=True):
        if needed is not None:
            yield Sentence(
                f"Steps of {name} are correlated over long spells, so its intervals are probably "
                f"too narrow; {units.count(needed)} steps or more would be enough.",
                "caution",
            )
    loop = [each for each in pair.figures if not each.stage and each.interval.value is not None]
    if loop and all(each.interval.differs is False for each in loop):
        yield Sentence(f"For the whole loop there is {NO_DIFFERENCE}.")
    if pair.other_machine == ("host",):
        yield Sentence(f"Different machine: {b} ran on another host of the same type.", "caution")
    elif pair.other_machine:
        named = ", ".join(name.removesuffix("_nbytes") for name in pair.other_machine)
        yield Sentence(
            f"Different machine: {b} ran elsewhere ({named}), so the ratios combine the effects of "
            "machine and run.",
            "caution",
        )
    if whys := dict.fromkeys(REASONS[each.withheld] for each in pair.figures if each.withheld):
        told = f"Withheld: {'; '.join(whys)}. --anyway shows them nevertheless."
        yield Sentence(told, "caution")
    elif pair.withheld:
        told = f"Note that {'; '.join(REASONS[each] for each in pair.withheld)}."
        yield Sentence(told, "caution")


def _basis(pair: PairComparison, a: str, b: str) -> Sentence:
    n_a, n_b = pair.n_cells
    if pair.basis == TURNS:
        used, there = pair.n_turns
        rest = f" of {there}" if there > used else ""
        return Sentence(
            f"{a} and {b} took turns in one job. Ratios are of {used}{rest} paired turns, so that "
            "whatever affected both alike cancels out."
        )
    if pair.basis == BETWEEN:
        few = " With so few runs, the intervals are wide." if min(n_a, n_b) < FEW_RUNS else ""
        return Sentence(
            f"Intervals cover what differs between runs of one configuration: {units.count(n_a)} "
            f"of {a}, {units.count(n_b)} of {b}.{few}"
        )
    if pair.n_turns[1]:
        what = (
            f"These runs took turns, but too few of them ({units.count(pair.n_turns[1])}) to be "
            "paired, which would cancel whatever affected both. Pairing needs "
            f"{units.count(FEWEST_TURNS)} turns or more with a steady step in each. Run more "
            "batches."
        )
    else:
        what = (
            "These runs were made one after the other. An interval covers what varies within a "
            "run, not what differs between runs, days or machines, which is often more than a "
            "change gains. To compare fairly, let them take turns: iobench profile --format a,b."
        )
    if short := [name for name, n in ((a, n_a), (b, n_b)) if n == 1]:
        are = "are" if len(short) > 1 else "is"
        what += (
            f" {' and '.join(short)} {are} too short for an interval; expected {BLOCKS[-1][0]} "
            "steps or more."
        )
    return Sentence(what, "caution")


def _whole_table(found: Comparison, names: Sequence[str]) -> Table:
    """Return what there is of whole runs, without a judgement; sums of what was folded, too."""
    runs = found.runs
    return Table(
        title="",
        columns=tuple(map(Column, ("", *names))),
        rows=(
            ("exposed share", *(Share(_wait_fraction(run)) for run in runs)),
            ("accelerator util., MLPerf", *(Share(_utilisation(run)) for run in runs)),
            ("wall time", *(Duration(_wall_ns(run)) for run in runs)),
            ("batches", *(Count(_n_batches(run)) for run in runs)),
            *_of_epochs(runs),
            *_of_jobs(runs),
            *_own(runs),
        ),
    )


def _of_epochs(runs: Sequence[ComparedRun]) -> Iterator[tuple[Cell, ...]]:
    """Yield what a whole epoch takes on average, where each of the runs has one."""
    whole = [
        [each for member in run.members for each in member.epochs if each.complete] for run in runs
    ]
    if all(whole):
        for what, name in (("an epoch", "wall_ns"), ("waiting during it", "wait_ns")):
            means = (sum(getattr(each, name) for each in of) / len(of) for of in whole)
            yield what, *map(Duration, means)


def _of_jobs(runs: Sequence[ComparedRun]) -> Iterator[tuple[Cell, ...]]:
    """Yield where the jobs' time went, where each of the runs is a script's; the mean of several.

    Parts that are under `WORTH_SAYING` of every job are left out.
    """
    jobs = [[member.job for member in run.members] for run in runs]
    known = [[job for job in of if job is not None] for of in jobs]
    if not all(known) or known != jobs:
        return

    def means(of: Callable[[JobTime], int]) -> list[float]:
        return [sum(map(of, each)) / len(each) for each in known]

    whole = means(lambda job: job.wall_ns)
    yield "job, from start to end", *map(Duration, whole)
    for part, name in PART_NAMES.items():
        found = means(lambda job, part=part: job.part(part).ns)  # type: ignore[misc]
        if any(ns > WORTH_SAYING * all_ns for ns, all_ns in zip(found, whole, strict=True)):
            yield f"  {name}", *map(Duration, found)


def _own(runs: Sequence[ComparedRun]) -> Iterator[tuple[Cell, ...]]:
    """Yield energy, and scripts' own figures in the last epoch; of several runs the mean."""
    for name in dict.fromkeys(n for run in runs for member in run.members for n in member.figures):
        means = (mean_of([each.figures.get(name) for each in run.members]) for run in runs)
        yield own_title(name), *(figure_cell(name, each) for each in means)


def _wait_fraction(run: ComparedRun) -> float | None:
    exposures = [each for member in run.members for each in member.exposures]
    wall_ns = sum(each.all_wall_ns for each in exposures)
    return sum(each.all_wait_ns for each in exposures) / wall_ns if wall_ns else None


def _wall_ns(run: ComparedRun) -> int:
    """Return the longest of the ranks' walls, of several runs all of them."""
    return sum(max(each.all_wall_ns for each in member.exposures) for member in run.members)


def _n_batches(run: ComparedRun) -> int:
    kept = sum(part.n_batches for member in run.members for part in member.parts("whole"))
    return kept + sum(member.n_folded for member in run.members)


def _utilisation(run: ComparedRun) -> float | None:
    """Return the mean of the runs; None where one has none."""
    found = [member.utilisation for member in run.members]
    known = [each.fraction for each in found if each is not None]
    told = [fraction for fraction in known if fraction is not None]
    return sum(told) / len(told) if len(told) == len(found) else None


def _about(found: Comparison, names: Sequence[str]) -> Iterator[Sentence]:
    """Yield what was not the same and may explain what differs, and what is to be known of runs."""
    told = [
        f"{name} {' | '.join(_told(name, value) for value in values)}"
        for name, values in found.differences.items()
    ]
    if told:
        yield Sentence(f"Not the same ({' | '.join(names)}): {'; '.join(told)}.")
    else:
        yield Sentence("Configuration and machine: the same, as far as the runs record them.")
    for name, run in zip(names, found.runs, strict=True):
        for member in run.members:
            who = f"{name} ({member.name})" if len(run.members) > 1 else name
            if member.unclosed:
                yield Sentence(
                    f"{who}: {units.count(len(member.unclosed))} of its processes were killed or "
                    "are still running; what they had written is compared."
                )
            missing = sum(len(each.missing_workers) for each in member.exposures)
            if missing:
                yield Sentence(
                    f"{who}: {units.count(missing)} of its processes left no spans, so the causes "
                    "of waits are partly unknown."
                )
    if found.grouped:
        yield from sentences(["Samples are compared only for single runs: leave --group out."])


def _told(name: str, value: Any) -> str:
    if isinstance(value, list) and name not in ("window", "windows"):
        return f"[{', '.join(_told(name, each) for each in value)}]"
    if value is None:
        return units.UNKNOWN
    if name == "step_ns":
        return units.duration(value)
    is_size = name in ("memory_nbytes", "sample_nbytes") and isinstance(value, int)
    return units.nbytes(value) if is_size else str(value)
