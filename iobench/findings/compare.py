"""Runs side by side: the figures of each pair, their ratios with intervals, and what differs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec.structs import replace

from iobench.analysis.exposure_figures import job_of_ranks
from iobench.analysis.intervals import (
    BLOCKS,
    BUSY,
    EXPOSED,
    PARTS,
    StepSums,
    add_ranks,
    block_ratio,
    needed_steps,
    paired_ratio,
    step_sums,
    turns_of,
)
from iobench.analysis.run import Run
from iobench.errors import OptionError, ProfileError
from iobench.findings.batch_digests import (
    compare_samples,
    delivered_samples,
    samples_sentences,
)
from iobench.findings.run_figures import last_figures, own_title
from iobench.findings.utilisation import Utilisation, mean_utilisation, utilisation
from iobench.recording.kinds import stage_title
from iobench.recording.this_process import THREAD_VARIABLES, VERSIONED
from iobench.report import units
from iobench.report.document import (
    NOT_APPLICABLE,
    Column,
    Document,
    Quantity,
    Section,
    Sentence,
    Table,
    sentences,
)
from iobench.report.sentences import PART_NAMES, detailed_batches
from iobench.report.sentences import PARTS as PART_WORDS
from iobench.report.suite_words import figure_cell
from iobench.runs.folders import run_paths

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from iobench.analysis.exposure_figures import Exposure, Window
    from iobench.findings.batch_digests import DeliveredSamples, SamplesComparison
    from iobench.report.document import Block, Cell, Unit

COMPARISON_VERSION: Final = 3
MOST: Final = 8
CONFIGURED: Final = (
    "dataset", "format", "spelled", "pipeline", "framework", "threads", "batch_size",
    "sample_nbytes", "n_samples", "stand_in", "tiny", "seed", "window", "windows", "split",
    "options", "detail", "digests", "darshan", "iobench_version",
)  # fmt: skip
"""What of a configuration can make figures differ, by its name in ``run.json``."""
OF_MACHINE: Final = ("host", "system", "python", "cpus", "cpu_model", "memory_nbytes")
OF_WORK: Final = ("dataset", "tiny", "sample_nbytes", "batch_size", "step_ns")
WEIGHTS: Final = {"step": "steps", "batch": "batches", "sample": "samples"}
NAMES: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
TITLES: Final = {
    "step_ns": "time", "sample_ns": "time", "compute_ns": "compute", "wait_ns": "wait",
    "samples_per_s": "samples/s", "bytes_per_s": "loaded", "wait_fraction": "exposed share",
}  # fmt: skip
UNITS: Final[dict[str, Unit]] = {
    "samples_per_s": "samples/s", "bytes_per_s": "B/s", "wait_fraction": "share",
}  # fmt: skip
"""Of what is no time."""
WORTH_SAYING: Final = 0.01
"""Share of a job from which a part of it is a row."""


class ComparedFigure(msgspec.Struct, frozen=True):
    """One figure of two runs: per step, batch or sample, of the loop or of a stage."""

    figure: str
    per: str | None
    stage: str | None
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


class ComparedRun(msgspec.Struct, frozen=True):
    """What is shown of one run, all its training processes together."""

    run: str
    ranks: int
    batches: int
    wall_ns: int
    wait_fraction: float | None
    mlperf_utilisation: Utilisation | None
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
    """A run as comparisons need it; no span stays in memory."""

    turn: tuple[int, int]
    shown: ComparedRun
    sums: Mapping[Window, StepSums]
    configuration: Mapping[str, Any]
    samples: DeliveredSamples
    cautions: tuple[str, ...]


def compare_runs(paths: Sequence[Path]) -> Comparison:
    """Read runs, or folders of runs made in turns, and set them side by side."""
    every = [(place, each) for place, path in enumerate(paths) for each in run_paths(path)]
    if not 2 <= len(every) <= MOST:
        raise OptionError(
            f"iobench compare: expected 2 to {MOST} runs, got {len(every)}; --quarterly makes one "
            "table of any number"
        )
    runs = sorted((_open(path, place) for place, path in every), key=lambda run: run.turn)
    window = next(part for part in PARTS if all(part in run.sums for run in runs))
    first, *others = runs
    names = dict.fromkeys(name for run in runs for name in run.configuration)
    values = {name: tuple(run.configuration.get(name) for run in runs) for name in names}
    differing = {
        name: each for name, each in values.items() if any(value != each[0] for value in each)
    }
    cautions = [each for run in runs for each in run.cautions]
    if of_work := [name for name in OF_WORK if name in differing]:
        cautions.append(
            f"{', '.join(of_work)} differ, so that a step, or a sample, is another amount of work"
        )
    return Comparison(
        window=window,
        runs=tuple(each.shown for each in runs),
        comparisons=tuple(_pair(first, other, window) for other in others),
        samples=tuple(compare_samples(first.samples, other.samples) for other in others),
        configuration=differing,
        cautions=tuple(cautions),
    )


def _open(path: Path, place: int) -> _Opened:
    run = Run(path)
    position = run.config.get("position")  # of the turns of a folder's runs
    sums: dict[Window, list[StepSums]] = {part: [] for part in PARTS}
    exposures: list[Exposure] = []
    used, n_missing = [], 0
    for rank in run:
        for window, of_ranks in sums.items():
            n_blocks = len(of_ranks[0].blocks["wall"]) if of_ranks else None
            if (each := step_sums(rank, window, n_blocks)) is not None:
                of_ranks.append(each)
        exposures.append(replace(rank.exposure, waits_ns=()))
        used.append(utilisation(rank))
        n_missing += rank.lost_spans + len(exposures[-1].missing_workers)
        n_missing += sum(each.damaged + (not each.closed) for each in rank.all_processes)
    if not exposures or len(sums["whole"]) < len(exposures):
        raise ProfileError(f"{path}: a training process got no batch; expected some of each")
    jobs = [each.job for each in exposures if each.job is not None]
    job = job_of_ranks(jobs) if len(jobs) == len(exposures) else None
    wall_ns = sum(each.all_wall_ns for each in exposures)
    n_batches = sum(each.whole.n_batches for each in exposures)
    n_summed = sum(each.n_summed for each in exposures)
    cautions = (
        (n_missing, f"{path}: spans were lost or processes killed, so waits may be missing"),
        (n_summed, f"{path}: {detailed_batches(n_batches, n_summed)}"),
    )
    return _Opened(
        turn=(place, position if isinstance(position, int) else 0),
        shown=ComparedRun(
            run=str(path),
            ranks=len(exposures),
            batches=n_batches + n_summed,
            wall_ns=max(each.all_wall_ns for each in exposures),
            wait_fraction=sum(e.all_wait_ns for e in exposures) / wall_ns if wall_ns else None,
            mlperf_utilisation=mean_utilisation(used),
            job_ns={"wall": job.wall_ns} | {each.part: each.ns for each in job.parts}
            if job
            else {},
            figures=last_figures(run),
        ),
        sums={part: add_ranks(e) for part, e in sums.items() if len(e) == len(exposures)},
        configuration=_configuration(run, exposures),
        samples=delivered_samples(run),
        cautions=tuple(text for is_so, text in cautions if is_so),
    )


def _configuration(run: Run, exposures: Sequence[Exposure]) -> dict[str, Any]:
    """Return what may explain a difference, by name; what the run does not record is missing."""
    config, exposure = run.config, exposures[0]
    facts = run.of_rank(run.ranks[0]).about
    steps = {each.steps.batches_per_step if each.steps else None for each in exposures}
    device, commit = facts.device, facts.commit and facts.commit.hash
    known = {name: config.get(name) for name in CONFIGURED} | {
        "workers": exposure.workers,
        "prefetch": exposure.prefetch,
        "dataset": facts.dataset,
        "framework": facts.framework,
        "batch_size": facts.batch_size,
        "batches_per_step": steps.pop() if len(steps) == 1 else None,
        "step_ns": facts.compute.step_ns,
        "device": device and device.name + (f" ({device.title})" if device.title else ""),
        "cache": facts.cache.asked,
        "script": config.get("command") if facts.is_script else None,
        "commit": commit and commit[:12],
        "ranks": len(exposures),
    }
    if facts.versions:
        known |= {name: facts.versions.get(name, "not imported") for name in VERSIONED}
    if facts.thread_settings:
        known |= {name: facts.thread_settings.get(name, "not set") for name in THREAD_VARIABLES}
    known |= {name: facts.machine.get(name) for name in OF_MACHINE}
    return {name: value for name, value in known.items() if value not in (None, {}, [])}


def _pair(first: _Opened, other: _Opened, window: Window) -> PairComparison:
    """Return the figures of two runs and their ratios, by rounds where they took turns."""
    whole = first.sums[window], other.sums[window]
    turns = turns_of(*whole)
    a, b = turns or whole
    n_blocks = len(a.blocks["wall"]), len(b.blocks["wall"])
    n_needed: list[int | None] = []
    for sums, n_of, run in zip(whole, n_blocks, (first, other), strict=True):
        needed = needed_steps(n_of, sums.unevenness, 0.0 if turns else sums.memory)
        n_steps = (sums.total("batches") or 0.0) / run.shown.ranks
        n_needed.append(needed if n_of > 1 and n_steps < needed else None)
    of_step, sizes = (
        [run.configuration.get(name) for run in (first, other)]
        for name in ("batches_per_step", "batch_size")
    )
    per = "step" if of_step[0] is not None and of_step[0] == of_step[1] else "batch"
    if sizes[0] != sizes[1] and "samples" in a.blocks:
        per = "sample"
    return PairComparison(
        run=other.shown.run,
        figures=tuple(_figures(a, b, per, is_paired=turns is not None)),
        interval_of="blocks" if turns is None else "rounds",
        n_blocks=n_blocks,
        needed_steps=(n_needed[0], n_needed[1]),
    )


def _figures(a: StepSums, b: StepSums, per: str, *, is_paired: bool) -> Iterator[ComparedFigure]:
    """Yield the figures of the loop, then busy time by stage, then exposed time by stage."""
    exposed = {
        stage: max((of.total(f"{EXPOSED}{stage}") or 0.0) / (of.total("batches") or 1.0)
                   for of in (a, b))
        for stage in {*a.stages, *b.stages}
    }  # fmt: skip
    stages = sorted(exposed, key=lambda stage: (-exposed[stage], stage))
    busy_per = "sample" if "samples" in a.blocks and "samples" in b.blocks else "batch"
    rows = (
        *((("step_ns", per, "wall", WEIGHTS[per], None),) if per != "sample" else ()),
        ("sample_ns", "sample", "wall", "samples", None),
        ("compute_ns", per, "compute", WEIGHTS[per], None),
        ("wait_ns", per, "wait", WEIGHTS[per], None),
        ("samples_per_s", None, "samples", "loop", None),
        ("bytes_per_s", None, "nbytes", "loop", None),
        ("wait_fraction", None, "wait", "wall", None),
        *((f"{BUSY}{s}", busy_per, f"{BUSY}{s}", WEIGHTS[busy_per], s) for s in stages),
        *((f"{EXPOSED}{s}", per, f"{EXPOSED}{s}", WEIGHTS[per], s) for s in stages),
    )
    for name, of, amount, weight, stage in rows:
        first, second = a.quotient(amount, weight), b.quotient(amount, weight)
        if first is None or second is None:
            continue
        comparison = paired_ratio(first, second) if is_paired else block_ratio(first, second)
        times = 1e9 if weight == "loop" else 1.0
        values = [None if each.value is None else each.value * times for each in (first, second)]
        yield ComparedFigure(
            name, of, stage, (values[0], values[1]),
            comparison.value, comparison.low, comparison.high, comparison.differs,
        )  # fmt: skip


def comparison_document(comparison: Comparison) -> Document:
    """Return runs side by side, what was different about them, and whether samples are the same."""
    names = NAMES[: len(comparison.runs)]
    first, others = names[0], names[1:]
    titles = [f"{name}: {run.run}" for name, run in zip(names, comparison.runs, strict=True)]
    cautions = sentences((f"{each}." for each in comparison.cautions), "caution")
    part = PART_WORDS[comparison.window]
    pairs = [
        Section(f"pair-{name}", f"{name} against {first} ({part})", tuple(_pair_blocks(pair, name)))
        for name, pair in zip(others, comparison.comparisons, strict=True)
    ]
    samples = [
        each
        for name, of in zip(others, comparison.samples, strict=True)
        for each in samples_sentences(of, first, name)
    ]
    differing = comparison.configuration.items()
    rows = [(name, *(_words(name, value) for value in values)) for name, values in differing]
    configuration = (
        _table("Not the same", ("", *names), rows)
        if rows
        else Sentence("Configuration and machine: the same, as far as the runs record them.")
    )
    whole = _table("", ("", *names), _whole_rows(comparison.runs))
    return Document(
        title="Runs compared",
        sections=(
            Section("runs", "", (*sentences(titles, "strong"), *cautions)),
            *pairs,
            Section("whole", "Whole runs", (whole, configuration)),
            Section("samples", "", tuple(samples)),
        ),
        figures=lambda: comparison,
    )


def _table(title: str, names: Iterable[str], rows: Iterable[tuple[Cell, ...]]) -> Table:
    return Table(title, tuple(map(Column, names)), tuple(rows))


def _pair_blocks(pair: PairComparison, name: str) -> Iterator[Block]:
    """Yield the figures of a run and of the first, and what their ratios do not say."""
    rows = [_figure_row(each) for each in pair.figures if not each.stage or any(each.values)]
    first = NAMES[0]
    yield _table("", ("", first, name, f"{name}/{first}", "95 % interval", "differs"), rows)
    if pair.interval_of == "rounds":
        yield Sentence("The runs took turns: whatever affected both alike cancels out.")
    else:
        yield Sentence(
            "An interval covers what varies within a run, not what differs between runs, days or "
            "machines. To compare fairly, let runs take turns: iobench profile --format a,b."
        )
    if 1 in pair.n_blocks:
        yield Sentence(f"Too short for an interval; expected {BLOCKS[-1][0]} steps or more.")
    for each, needed in zip((first, name), pair.needed_steps, strict=True):
        if needed is not None:
            yield Sentence(
                f"Intervals of {each} are probably too short; {units.count(needed)} steps would "
                "be enough."
            )


def _figure_row(figure: ComparedFigure) -> tuple[Cell, ...]:
    kind = " busy" if figure.figure.startswith(BUSY) else " exposed"
    title = f"{stage_title(figure.stage)}{kind}" if figure.stage else TITLES[figure.figure]
    values = (Quantity(value, UNITS.get(figure.figure, "ns")) for value in figure.values)
    row: list[Cell] = [f"{title} per {figure.per}" if figure.per else title, *values]
    if figure.ratio is None:
        return (*row, NOT_APPLICABLE, NOT_APPLICABLE, NOT_APPLICABLE)
    ratio = Quantity(figure.ratio, "ratio")
    if figure.low is None or figure.high is None:
        return (*row, ratio, NOT_APPLICABLE, NOT_APPLICABLE)
    between = f"{units.ratio(figure.low)} to {units.ratio(figure.high)}"
    word = "more" if figure.ratio > 1 else "less"
    return (*row, ratio, between, word if figure.differs else "no")


def _whole_rows(runs: Sequence[ComparedRun]) -> Iterator[tuple[Cell, ...]]:
    """Yield what there is of whole runs, without a judgement."""
    used = [each.fraction if (each := run.mlperf_utilisation) else None for run in runs]
    yield ("exposed share", *(Quantity(run.wait_fraction, "share") for run in runs))
    yield ("accelerator util., MLPerf", *(Quantity(each, "share") for each in used))
    yield ("wall time", *(Quantity(run.wall_ns, "ns") for run in runs))
    yield ("batches", *(Quantity(run.batches, "count") for run in runs))
    for part, title in {"wall": "job, from start to end", **PART_NAMES}.items():
        times = [run.job_ns.get(part) for run in runs]
        walls = [run.job_ns.get("wall") or 1 for run in runs]
        if any((ns or 0) > WORTH_SAYING * wall for ns, wall in zip(times, walls, strict=True)):
            yield (title, *(Quantity(ns, "ns") for ns in times))
    for name in dict.fromkeys(name for run in runs for name in run.figures):
        yield (own_title(name), *(figure_cell(name, run.figures.get(name)) for run in runs))


def _words(name: str, value: Any) -> str:
    if value is None:
        return units.UNKNOWN
    if name == "step_ns":
        return units.duration(value)
    return units.nbytes(value) if name.endswith("_nbytes") else str(value)
