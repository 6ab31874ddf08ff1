"""Runs side by side: the figures of each pair, their ratios with intervals, and what differs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from iobench.analysis.epochs import epoch_figures, epoch_times
from iobench.analysis.intervals import (
    BLOCKS,
    BUSY,
    EXPOSED,
    FEWEST_ROUNDS,
    PARTS,
    StepSums,
    add_ranks,
    block_ratio,
    needed_steps,
    of_rounds,
    pair_rounds,
    paired_ratio,
    step_sums,
)
from iobench.analysis.job_figures import job_of_ranks
from iobench.analysis.run import Run
from iobench.errors import OptionError, ProfileError
from iobench.findings.batch_digests import delivered_samples
from iobench.findings.compare_samples import compare_samples, samples_sentences
from iobench.findings.script_figures import last_figures, own_title
from iobench.findings.utilisation import Utilisation, mean_utilisation, utilisation
from iobench.json_files import read_json
from iobench.recording.kinds import stage_title
from iobench.recording.this_process import THREAD_VARIABLES, VERSIONED
from iobench.report import units
from iobench.report.document import (
    NOT_APPLICABLE,
    Column,
    Count,
    Document,
    Duration,
    Quantity,
    Ratio,
    Section,
    Sentence,
    Share,
    Table,
    sentences,
)
from iobench.report.json_walk import to_plain
from iobench.report.sentences import PART_NAMES, kept_words
from iobench.report.sentences import PARTS as PART_WORDS
from iobench.report.suite_words import figure_cell
from iobench.runs.folders import run_paths

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from iobench.analysis.exposure_figures import Exposure, Window
    from iobench.findings.batch_digests import DeliveredSamples
    from iobench.findings.compare_samples import SamplesComparison
    from iobench.report.document import Cell, Unit
    from iobench.runs.run_facts import RunFacts

COMPARISON_VERSION: Final = 3
MOST: Final = 8
CONFIGURED: Final = (
    "dataset", "format", "spelled", "pipeline", "framework", "threads", "batch_size",
    "sample_nbytes", "n_samples", "stand_in", "tiny", "seed", "window", "windows", "split",
    "options", "detail", "digests", "darshan", "iobench_version",
)  # fmt: skip
"""What of a configuration can make figures differ, by its name in ``run.json``."""
OF_MACHINE: Final = ("host", "system", "python", "cpus", "cpu_model", "memory_nbytes")
SAME_MACHINE: Final = ("host", "cpus", "cpu_model", "memory_nbytes")
ENVIRONMENT: Final = frozenset({"commit", *VERSIONED, *THREAD_VARIABLES})
WEIGHTS: Final = {"step": "steps", "batch": "batches", "sample": "samples"}
NAMES: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
TITLES: Final = {
    "step_ns": "time", "sample_ns": "time", "compute_ns": "compute", "wait_ns": "wait",
    "samples_per_s": "samples/s", "bytes_per_s": "loaded", "wait_fraction": "exposed share",
}  # fmt: skip
CELLS: Final[dict[str, Unit]] = {
    "ns": "ns", "per_s": "samples/s", "bytes_per_s": "B/s", "fraction": "share",
}  # fmt: skip
N_STAGES: Final = 12
WORTH_SAYING: Final = 0.01
"""Share of a job from which a part of it is a row."""


class ComparedFigure(msgspec.Struct, frozen=True):
    """One figure of two runs: per step, batch or sample, of the loop or of a stage."""

    figure: str
    per: str
    unit: str
    stage: str
    values: tuple[float | None, float | None]
    ratio: float | None  # of the second to the first
    low: float | None
    high: float | None
    differs: bool | None


class PairComparison(msgspec.Struct, frozen=True):
    """A run against the first.

    ``needed_steps`` says, of each run whose intervals are probably too short, how many would do.
    """

    run: str
    figures: tuple[ComparedFigure, ...]
    interval_of: str  # rounds or blocks
    n_blocks: tuple[int, int]
    needed_steps: tuple[int | None, int | None]
    other_machine: tuple[str, ...]


class ComparedRun(msgspec.Struct, frozen=True):
    """What is shown of one run, all its training processes together."""

    run: str
    ranks: int
    batches: int
    wall_ns: int
    wait_fraction: float | None
    mlperf_utilisation: Utilisation | None
    epoch_ns: float | None  # a whole epoch on average
    epoch_wait_ns: float | None
    job_ns: Mapping[str, int]  # by part; empty of what is no script
    figures: Mapping[str, float | None]  # energy, and a script's own in the last epoch


class Comparison(msgspec.Struct, frozen=True):
    """Runs, and each of them against the first."""

    window: Window
    runs: tuple[ComparedRun, ...]
    comparisons: tuple[PairComparison, ...]
    samples: tuple[SamplesComparison, ...]
    configuration: Mapping[str, tuple[Any, ...]]  # what is not the same, by run
    cautions: tuple[str, ...]
    schema_version: int = COMPARISON_VERSION


class _Opened(msgspec.Struct, frozen=True):
    """A run as comparisons need it; no span is kept."""

    shown: ComparedRun
    facts: RunFacts
    sums: Mapping[Window, StepSums]
    batches_per_step: int | None
    configuration: Mapping[str, Any]
    samples: DeliveredSamples
    doubts: tuple[str, ...]


def compare_runs(paths: Sequence[Path]) -> Comparison:
    """Read runs, or folders of runs made in turns, and set them side by side.

    Raises
    ------
    OptionError
        If there are too few or too many runs.
    ProfileError
        If one cannot be analysed, or delivered nothing.
    """
    every = [each for path in paths for each in _ordered(run_paths(path))]
    if not 2 <= len(every) <= MOST:
        raise OptionError(
            f"iobench compare: expected 2 to {MOST} runs, got {len(every)}; --quarterly makes one "
            "table of any number"
        )
    runs = [_open(path) for path in every]
    window = next(part for part in PARTS if all(part in run.sums for run in runs))
    first, *others = runs
    names = dict.fromkeys(name for run in runs for name in run.configuration)
    values = {name: tuple(run.configuration.get(name) for run in runs) for name in names}
    return Comparison(
        window=window,
        runs=tuple(each.shown for each in runs),
        comparisons=tuple(_pair(first, other, window) for other in others),
        samples=tuple(compare_samples(first.samples, other.samples) for other in others),
        configuration={
            name: each
            for name, each in values.items()
            if any(value != each[0] for value in each)
            and not (name in ENVIRONMENT and None in each)
        },
        cautions=(
            *(each for run in runs for each in run.doubts),
            *(each for other in others for each in _mismatches(first, other)),
        ),
    )


def _ordered(paths: tuple[Path, ...]) -> list[Path]:
    """Return the runs of a folder in the order of their turns."""

    def position(path: Path) -> int:
        try:
            value = read_json(path / "run.json", finite=True).get("position", 0)
        except (OSError, ValueError, AttributeError):
            return 0  # opening it says what is wrong
        return value if isinstance(value, int) else 0

    return sorted(paths, key=position) if len(paths) > 1 else list(paths)


def _open(path: Path) -> _Opened:
    run = Run(path)
    sums: dict[Window, list[StepSums]] = {part: [] for part in PARTS}
    exposures: list[Exposure] = []
    used, lost, unclosed = [], 0, 0
    for rank in run:
        for window, of_ranks in sums.items():
            n_blocks = len(of_ranks[0].blocks["wall"]) if of_ranks else None
            if (each := step_sums(rank, window, n_blocks)) is not None:
                of_ranks.append(each)
        exposures.append(rank.exposure.without_waits())
        used.append(utilisation(rank))
        lost += rank.lost_spans + sum(each.damaged for each in rank.all_processes)
        unclosed += sum(not each.closed for each in rank.all_processes)
    if not exposures or len(sums["whole"]) < len(exposures):
        some = exposures and sums["whole"]
        what = "some of its training processes got no batch" if some else "no batch was delivered"
        raise ProfileError(f"{path}: {what}; there is nothing to compare")
    first = run.of_rank(run.ranks[0])
    epochs = [each for each in epoch_times(first.cached(epoch_figures)) if each.complete]
    epochs = [] if first.is_one_of_many else epochs
    jobs = [each.job for each in exposures if each.job is not None]
    job = job_of_ranks(jobs) if len(jobs) == len(exposures) else None
    steps = {each.steps.batches_per_step if each.steps else None for each in exposures}
    batches_per_step = steps.pop() if len(steps) == 1 else None
    wall_ns = sum(each.all_wall_ns for each in exposures)
    n_batches = sum(each.whole.n_batches for each in exposures)
    n_summed = sum(each.n_summed for each in exposures)
    missing = sum(len(each.missing_workers) for each in exposures)
    doubts = (
        (lost, f"{path}: spans were lost or are damaged, so waits may be missing"),
        (unclosed, f"{path}: {unclosed} of its processes were killed or are still running"),
        (missing, f"{path}: {missing} of its processes left no spans"),
        (n_summed, f"{path}: {kept_words(n_batches, n_summed)}"),
    )
    return _Opened(
        shown=ComparedRun(
            run=str(path),
            ranks=len(exposures),
            batches=n_batches + n_summed,
            wall_ns=max(each.all_wall_ns for each in exposures),
            wait_fraction=sum(e.all_wait_ns for e in exposures) / wall_ns if wall_ns else None,
            mlperf_utilisation=mean_utilisation(used),
            epoch_ns=_mean([each.wall_ns for each in epochs]),
            epoch_wait_ns=_mean([each.wait_ns for each in epochs]),
            job_ns={}
            if job is None
            else {"wall": job.wall_ns, **{each.part: each.ns for each in job.parts}},
            figures=last_figures(run),
        ),
        facts=run.about,
        sums={part: add_ranks(e) for part, e in sums.items() if len(e) == len(exposures)},
        batches_per_step=batches_per_step,
        configuration=_configuration(run, exposures, batches_per_step),
        samples=delivered_samples(run),
        doubts=tuple(text for is_so, text in doubts if is_so),
    )


def _mean(values: Sequence[int]) -> float | None:
    return sum(values) / len(values) if values else None


def _configuration(
    run: Run, exposures: Sequence[Exposure], batches_per_step: int | None
) -> dict[str, Any]:
    """Return what may explain a difference, by name; what the run does not record is missing."""
    config, facts, exposure = run.config, run.about, exposures[0]
    if facts.is_script:
        facts = facts.with_loaders(exposure.loaders)
    device = facts.device
    known = {name: config.get(name) for name in CONFIGURED} | {
        "workers": exposure.workers,
        "prefetch": exposure.prefetch,
        "dataset": facts.dataset,
        "framework": facts.framework,
        "batch_size": facts.batch_size,
        "batches_per_step": batches_per_step,
        "step_ns": facts.compute.step_ns,
        "device": device and device.name + (f" ({device.title})" if device.title else ""),
        "cache": facts.cache.asked,
        "script": config.get("command") if facts.is_script else None,
        "commit": facts.commit and facts.commit.hash,
        "ranks": len(exposures),
    }
    if facts.versions:
        known |= {name: facts.versions.get(name, "not imported") for name in VERSIONED}
    if facts.thread_settings:
        known |= {name: facts.thread_settings.get(name, "not set") for name in THREAD_VARIABLES}
    known |= {name: facts.machine.get(name) for name in OF_MACHINE}
    return {name: value for name, value in known.items() if value not in (None, {}, [])}


def _mismatches(first: _Opened, other: _Opened) -> Iterator[str]:
    """Yield what makes a comparison of two runs say less, or nothing."""
    a, b = first.facts, other.facts
    pair = f"{first.shown.run} and {other.shown.run}"
    # A script's dataset is a class; the same data may be read by two.
    if not (a.is_script or b.is_script) and a.dataset != b.dataset:
        yield f"{pair} are of different datasets, {a.dataset} and {b.dataset}"
    if a.tiny != b.tiny:
        small = first if a.tiny else other
        yield f"{pair}: {small.shown.run} uses tiny stand-ins, the other data of the real size"
    if None not in (a.sample_nbytes, b.sample_nbytes) and a.sample_nbytes != b.sample_nbytes:
        sizes = f"{units.nbytes(a.sample_nbytes)} and {units.nbytes(b.sample_nbytes)}"
        yield f"{pair} are of different samples, {sizes} each"
    if a.batch_size != b.batch_size:
        yield f"{pair} have different batch sizes: a step is a different amount of work"
    steps = [
        each.compute.step_ns and each.compute.step_ns / (each.batch_size or 1) for each in (a, b)
    ]
    if (steps[0] is None) != (steps[1] is None) or (
        steps[0] is not None and steps[1] is not None and abs(steps[0] - steps[1]) > 1
    ):
        yield (
            f"{pair} have different emulated compute times per sample, which changes waits, rates "
            "and exposed times"
        )


def _pair(first: _Opened, other: _Opened, window: Window) -> PairComparison:
    """Return the figures of two runs and their ratios, by rounds where they took turns."""
    a, b = first.sums[window], other.sums[window]
    rounds = pair_rounds(a, b)
    is_paired = rounds is not None and len(rounds) >= FEWEST_ROUNDS
    if rounds is not None and is_paired:
        a, b = of_rounds(a, rounds), of_rounds(b, rounds)
    step = first.batches_per_step
    per = "step" if step is not None and step == other.batches_per_step else "batch"
    if first.facts.batch_size != other.facts.batch_size and "samples" in a.blocks:
        per = "sample"
    machines = [each.facts.machine for each in (first, other)]
    return PairComparison(
        run=other.shown.run,
        figures=tuple(_figures(a, b, per, is_paired=is_paired)),
        interval_of="rounds" if is_paired else "blocks",
        n_blocks=(len(a.blocks["wall"]), len(b.blocks["wall"])),
        needed_steps=(
            _needed_steps(first, window, len(a.blocks["wall"]), is_paired=is_paired),
            _needed_steps(other, window, len(b.blocks["wall"]), is_paired=is_paired),
        ),
        other_machine=tuple(
            name for name in SAME_MACHINE if machines[0].get(name) != machines[1].get(name)
        ),
    )


def _needed_steps(run: _Opened, window: Window, n_blocks: int, *, is_paired: bool) -> int | None:
    """Return how many steps would be enough; None where there are as many, or no interval."""
    sums = run.sums[window]
    needed = needed_steps(n_blocks, sums.unevenness, 0.0 if is_paired else sums.memory)
    n_steps = (sums.total("batches") or 0.0) / run.shown.ranks
    return needed if n_blocks > 1 and n_steps < needed else None


def _figures(a: StepSums, b: StepSums, per: str, *, is_paired: bool) -> Iterator[ComparedFigure]:
    """Yield the figures of the loop, then busy time by stage, then exposed time by stage."""
    both = {name for name in a.blocks if name in b.blocks}
    stages = sorted(
        {*a.stages, *b.stages},
        key=lambda stage: (-max(_exposed(each, stage) for each in (a, b)), stage),
    )
    busy_per = "sample" if "samples" in both else "batch"
    rows = (
        ("step_ns", per, "ns", "wall", WEIGHTS[per], ""),
        ("sample_ns", "sample", "ns", "wall", "samples", ""),
        ("compute_ns", per, "ns", "compute", WEIGHTS[per], ""),
        ("wait_ns", per, "ns", "wait", WEIGHTS[per], ""),
        ("samples_per_s", "", "per_s", "samples", "loop", ""),
        ("bytes_per_s", "", "bytes_per_s", "nbytes", "loop", ""),
        ("wait_fraction", "", "fraction", "wait", "wall", ""),
        *((f"{BUSY}{s}", busy_per, "ns", f"{BUSY}{s}", WEIGHTS[busy_per], s) for s in stages),
        *((f"{EXPOSED}{s}", per, "ns", f"{EXPOSED}{s}", WEIGHTS[per], s) for s in stages),
    )
    for name, of, unit, amount, weight, stage in rows:
        first, second = a.quotient(amount, weight), b.quotient(amount, weight)
        if first is None or second is None or (name == "step_ns" and per == "sample"):
            continue
        comparison = paired_ratio(first, second) if is_paired else block_ratio(first, second)
        times = 1e9 if weight == "loop" else 1.0
        values = [None if each.value is None else each.value * times for each in (first, second)]
        yield ComparedFigure(
            name, of, unit, stage, (values[0], values[1]),
            comparison.value, comparison.low, comparison.high, comparison.differs,
        )  # fmt: skip


def _exposed(sums: StepSums, stage: str) -> float:
    return (sums.total(f"{EXPOSED}{stage}") or 0.0) / (sums.total("batches") or 1.0)


def comparison_document(comparison: Comparison) -> Document:
    """Return runs side by side, what was different about them, and whether samples are the same."""
    names = NAMES[: len(comparison.runs)]
    called = [f"{name}: {run.run}" for name, run in zip(names, comparison.runs, strict=True)]
    cautions = sentences((f"{each}." for each in comparison.cautions), "caution")
    pairs = [
        _pair_section(pair, name, PART_WORDS[comparison.window])
        for name, pair in zip(names[1:], comparison.comparisons, strict=True)
    ]
    samples = [
        each
        for name, of in zip(names[1:], comparison.samples, strict=True)
        for each in samples_sentences(of, names[0], name)
    ]
    differing = [
        f"{name} {' | '.join(_words(name, value) for value in values)}"
        for name, values in comparison.configuration.items()
    ]
    same = "Configuration and machine: the same, as far as the runs record them."
    different = f"Not the same ({' | '.join(names)}): {'; '.join(differing)}."
    about = Sentence(different if differing else same)
    return Document(
        title="Runs compared",
        sections=(
            Section("runs", "", (*sentences(called, "strong"), *cautions)),
            *pairs,
            Section("whole", "Whole runs", (_whole_table(comparison.runs, names), about)),
            Section("samples", "", tuple(samples)),
        ),
        figures=lambda: to_plain(comparison),
    )


def _pair_section(pair: PairComparison, name: str, part: str) -> Section:
    first = NAMES[0]
    n_stages, rows = 0, list[tuple["Cell", ...]]()
    for each in pair.figures:
        n_stages = n_stages + 1 if each.stage else 0
        if n_stages and (not any(each.values) or n_stages > 2 * N_STAGES):
            continue
        kind = " busy" if each.figure.startswith(BUSY) else " exposed" if each.stage else ""
        title = f"{stage_title(each.stage)}{kind}" if each.stage else TITLES[each.figure]
        per = f" per {each.per}" if each.per else ""
        values = (Quantity(value, CELLS[each.unit]) for value in each.values)
        rows.append((f"{title}{per}", *values, *_ratio_cells(each)))
    columns = ("", first, name, f"{name}/{first}", "95 % interval", "differs")
    table = Table("", tuple(map(Column, columns)), tuple(rows))
    lines = sentences(_pair_notes(pair, first, name))
    return Section(f"pair-{name}", f"{name} against {first} ({part})", (table, *lines))


def _ratio_cells(figure: ComparedFigure) -> tuple[Cell, Cell, Cell]:
    if figure.ratio is None or figure.low is None or figure.high is None:
        ratio = NOT_APPLICABLE if figure.ratio is None else Ratio(figure.ratio)
        return ratio, NOT_APPLICABLE, NOT_APPLICABLE
    between = f"{units.ratio(figure.low)} to {units.ratio(figure.high)}"
    word = "more" if figure.ratio > 1 else "less"
    return Ratio(figure.ratio), between, word if figure.differs else "no"


def _pair_notes(pair: PairComparison, a: str, b: str) -> Iterator[str]:
    """Yield what a run's ratios to the first are of, and what they do not say."""
    if pair.interval_of == "rounds":
        yield f"{a} and {b} took turns in one job: whatever affected both alike cancels out."
    else:
        yield (
            "An interval covers what varies within a run, not what differs between runs, days or "
            "machines. To compare fairly, let runs take turns: iobench profile --format a,b."
        )
        for name, n_blocks in zip((a, b), pair.n_blocks, strict=True):
            if n_blocks == 1:
                least = BLOCKS[-1][0]
                yield f"{name} is too short for an interval; expected {least} steps or more."
    for name, needed in zip((a, b), pair.needed_steps, strict=True):
        if needed is not None:
            yield (
                f"Steps of {name} are correlated over long spells, or few of them take most of the "
                "time, so its intervals are probably too short; "
                f"{units.count(needed)} steps or more would be enough."
            )
    if any(each.low is not None for each in pair.figures):
        yield "At 95 %, one interval in 20 misses, so among many rows one may differ by chance."
    if pair.other_machine:
        differing = ", ".join(name.removesuffix("_nbytes") for name in pair.other_machine)
        yield f"{b} ran on another machine ({differing}), which the ratios include."


def _whole_table(runs: Sequence[ComparedRun], names: str) -> Table:
    """Return what there is of whole runs, without a judgement."""
    used = [each.fraction if (each := run.mlperf_utilisation) else None for run in runs]
    rows: list[tuple[Cell, ...]] = [
        ("exposed share", *(Share(run.wait_fraction) for run in runs)),
        ("accelerator util., MLPerf", *map(Share, used)),
        ("wall time", *(Duration(run.wall_ns) for run in runs)),
        ("batches", *(Count(run.batches) for run in runs)),
    ]
    if all(run.epoch_ns is not None for run in runs):
        rows.append(("an epoch", *(Duration(run.epoch_ns) for run in runs)))
        rows.append(("waiting during it", *(Duration(run.epoch_wait_ns) for run in runs)))
    if all(run.job_ns for run in runs):
        for part, title in {"wall": "job, from start to end", **PART_NAMES}.items():
            of = [run.job_ns[part] for run in runs]
            if any(
                ns > WORTH_SAYING * run.job_ns["wall"] for ns, run in zip(of, runs, strict=True)
            ):
                rows.append((title, *map(Duration, of)))
    rows += [
        (own_title(name), *(figure_cell(name, run.figures.get(name)) for run in runs))
        for name in dict.fromkeys(name for run in runs for name in run.figures)
    ]
    return Table("", tuple(map(Column, ("", *names))), tuple(rows))


def _words(name: str, value: Any) -> str:
    if value is None:
        return units.UNKNOWN
    if name == "step_ns":
        return units.duration(value)
    return units.nbytes(value) if name.endswith("_nbytes") else str(value)
