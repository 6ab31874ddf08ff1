"""Runs side by side: the figures of each pair, their ratios with intervals, and what differs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec.structs import replace

from iobench.analysis.exposure_figures import job_of_ranks
from iobench.analysis.intervals import (
    BUSY,
    EXPOSED,
    LONG_ENOUGH,
    PARTS,
    StepSums,
    add_ranks,
    block_ratio,
    paired_ratio,
    step_sums,
    turns_of,
)
from iobench.analysis.run import Run
from iobench.errors import OptionError, ProfileError
from iobench.findings.batch_digests import compare_samples, delivered_samples, samples_sentences
from iobench.findings.energy import energy_j
from iobench.findings.script_figures import metrics_of_ranks, script_metrics
from iobench.recording.kinds import stage_title
from iobench.recording.this_process import THREAD_VARIABLES, VERSIONED
from iobench.report import units
from iobench.report.document import (
    NOT_APPLICABLE,
    Document,
    Quantity,
    Section,
    Sentence,
    Table,
    columns,
    sentences,
)
from iobench.report.sentences import PARTS as PART_WORDS
from iobench.report.sentences import detailed_batches
from iobench.report.suite_words import figure_cell
from iobench.runs.reading import run_paths

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from iobench.analysis.exposure_figures import Exposure, Window
    from iobench.analysis.run import RankRun
    from iobench.findings.batch_digests import DeliveredSamples, SamplesComparison
    from iobench.report.document import Block, Cell, Unit

ENERGY: Final = "energy_j"
MOST: Final = 8
CONFIGURED: Final = (
    "dataset", "format", "spelled", "pipeline", "framework", "threads", "batch_size",
    "sample_nbytes", "n_samples", "stand_in", "tiny", "seed", "window", "windows", "split",
    "options", "detail", "digests", "free_data", "darshan", "iobench_version",
)  # fmt: skip
"""What of a configuration can make figures differ, by its name in ``run.json``."""
OF_MACHINE: Final = ("host", "system", "python", "cpus", "cpu_model", "memory_nbytes")
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
    """A run against the first."""

    run: str
    figures: tuple[ComparedFigure, ...]
    interval_of: str  # rounds or blocks
    n_blocks: tuple[int, int]


class ComparedRun(msgspec.Struct, frozen=True):
    """What is shown of one run, all its training processes together."""

    run: str
    ranks: int
    wall_ns: int
    job_wall_ns: int | None  # None of what is no script
    figures: Mapping[str, float | None]  # energy, and a script's own in the last epoch


class Comparison(msgspec.Struct, frozen=True):
    """Runs, and each of them against the first."""

    window: Window
    runs: tuple[ComparedRun, ...]
    comparisons: tuple[PairComparison, ...]
    samples: tuple[SamplesComparison, ...]
    configuration: Mapping[str, tuple[Any, ...]]  # what is not the same, by run
    cautions: tuple[str, ...]
    schema_version: int = 4


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
    return Comparison(
        window=window,
        runs=tuple(each.shown for each in runs),
        comparisons=tuple(_pair(first, other, window) for other in others),
        samples=tuple(compare_samples(first.samples, other.samples) for other in others),
        configuration={
            name: each for name, each in values.items() if any(value != each[0] for value in each)
        },
        cautions=tuple(each for run in runs for each in run.cautions),
    )


def _open(path: Path, place: int) -> _Opened:
    run = Run(path)
    position = run.config.get("position")  # of the turns of a folder's runs
    sums: dict[Window, list[StepSums]] = {part: [] for part in PARTS}
    exposures: list[Exposure] = []
    n_missing = 0
    for rank in run:
        for window, of_ranks in sums.items():
            n_blocks = len(of_ranks[0].blocks["wall"]) if of_ranks else None
            if (each := step_sums(rank, window, n_blocks)) is not None:
                of_ranks.append(each)
        exposures.append(replace(rank.exposure, waits_ns=()))
        n_missing += rank.lost_spans + len(rank.exposure.missing_workers)
        n_missing += sum(each.damaged for each in rank.all_processes) + len(rank.unended)
    if not exposures or len(sums["whole"]) < len(exposures):
        raise ProfileError(f"{path}: a training process got no batch; expected some of each")
    jobs = [each.job for each in exposures if each.job is not None]
    n_summed = sum(each.n_summed for each in exposures)
    detailed = detailed_batches(sum(each.whole.n_batches for each in exposures), n_summed)
    cautions = (
        (n_missing, f"{path}: spans were lost or processes killed, so waits may be missing"),
        (n_summed, f"{path}: {detailed}"),
    )
    return _Opened(
        turn=(place, position if isinstance(position, int) else 0),
        shown=ComparedRun(
            run=str(path),
            ranks=len(exposures),
            wall_ns=max(each.all_wall_ns for each in exposures),
            job_wall_ns=job_of_ranks(jobs).wall_ns if len(jobs) == len(exposures) else None,
            figures=last_figures(run),
        ),
        sums={part: add_ranks(e) for part, e in sums.items() if len(e) == len(exposures)},
        configuration=_configuration(run, exposures[0]),
        samples=delivered_samples(run),
        cautions=tuple(text for is_so, text in cautions if is_so),
    )


def _configuration(run: Run, exposure: Exposure) -> dict[str, Any]:
    """Return what may explain a difference, by name; what the run does not record is missing."""
    facts = run.of_rank(run.ranks[0]).about
    known = {name: run.config.get(name) for name in CONFIGURED} | {
        "workers": exposure.workers,
        "prefetch": exposure.prefetch,
        "dataset": facts.dataset,
        "framework": facts.framework,
        "batch_size": facts.batch_size,
        "batches_per_step": exposure.steps and exposure.steps.batches_per_step,
        "step_ns": facts.compute.step_ns,
        "device": facts.device and facts.device.name,
        "cache": facts.cache.state,
        "script": run.config.get("command") if facts.is_script else None,
        "commit": facts.commit and (facts.commit.hash or "")[:12],
        "ranks": len(run.ranks),
    }
    known |= {name: facts.versions.get(name) for name in VERSIONED}
    known |= {name: facts.thread_settings.get(name) for name in THREAD_VARIABLES}
    known |= {name: facts.machine.get(name) for name in OF_MACHINE}
    return {name: value for name, value in known.items() if value not in (None, {}, [], "")}


def _pair(first: _Opened, other: _Opened, window: Window) -> PairComparison:
    """Return the figures of two runs and their ratios, by rounds where they took turns."""
    whole = first.sums[window], other.sums[window]
    turns = turns_of(*whole)
    a, b = turns or whole
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
        n_blocks=(len(a.blocks["wall"]), len(b.blocks["wall"])),
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
    runs, names = comparison.runs, NAMES[: len(comparison.runs)]
    titles = [f"{name}: {run.run}" for name, run in zip(names, runs, strict=True)]
    cautions = sentences((f"{each}." for each in comparison.cautions), "caution")
    pairs, samples = list[Section](), list[Sentence]()
    of_others = zip(names[1:], comparison.comparisons, comparison.samples, strict=True)
    for name, pair, same in of_others:
        title = f"{name} against {names[0]} ({PART_WORDS[comparison.window]})"
        pairs.append(Section(f"pair-{name}", title, tuple(_pair_blocks(pair, name))))
        samples += samples_sentences(same, names[0], name)
    differing = [
        (name, *(units.UNKNOWN if value is None else str(value) for value in values))
        for name, values in comparison.configuration.items()
    ]
    whole: list[tuple[Cell, ...]] = [
        ("wall time", *(Quantity(run.wall_ns, "ns") for run in runs)),
    ]
    if any(run.job_wall_ns for run in runs):
        whole.append(("job, start to end", *(Quantity(run.job_wall_ns, "ns") for run in runs)))
    whole.extend(
        (own_title(of), *(figure_cell(of, run.figures.get(of)) for run in runs))
        for of in dict.fromkeys(name for run in runs for name in run.figures)
    )
    tables = [Table("", columns("", *names), tuple(whole))]
    if differing:
        tables.append(Table("Not the same", columns("", *names), tuple(differing)))
    return Document(
        title="Runs compared",
        sections=(
            Section("runs", "", (*sentences(titles, "strong"), *cautions)),
            *pairs,
            Section("whole", "Whole runs", tuple(tables)),
            Section("samples", "", tuple(samples)),
        ),
        figures=lambda: comparison,
    )


def _pair_blocks(pair: PairComparison, name: str) -> Iterator[Block]:
    """Yield the figures of a run and of the first, and what their ratios do not say."""
    rows = [_figure_row(each) for each in pair.figures if not each.stage or any(each.values)]
    first = NAMES[0]
    titles = columns("", first, name, f"{name}/{first}", "95 % interval", "differs")
    yield Table("", titles, tuple(rows))
    if pair.interval_of == "rounds":
        yield Sentence("The runs took turns: whatever affected both alike cancels out.")
    else:
        yield Sentence(
            "An interval covers what varies within a run, not what differs between runs, days or "
            "machines. To compare fairly, let runs take turns: iobench profile --format a,b."
        )
    if 1 in pair.n_blocks:
        yield Sentence(f"Too short for an interval; expected {LONG_ENOUGH}.")


def _figure_row(figure: ComparedFigure) -> tuple[Cell, ...]:
    kind = " busy" if figure.figure.startswith(BUSY) else " exposed"
    title = f"{stage_title(figure.stage)}{kind}" if figure.stage else TITLES[figure.figure]
    values = (Quantity(value, UNITS.get(figure.figure, "ns")) for value in figure.values)
    ratio = NOT_APPLICABLE if figure.ratio is None else Quantity(figure.ratio, "ratio")
    between, word = NOT_APPLICABLE, NOT_APPLICABLE
    if figure.low is not None and figure.high is not None:
        between = f"{units.ratio(figure.low)} to {units.ratio(figure.high)}"
        word = "no" if not figure.differs else "more" if figure.low > 1 else "less"
    return (f"{title} per {figure.per}" if figure.per else title, *values, ratio, between, word)


def last_figures(run: Iterable[RankRun]) -> dict[str, float | None]:
    """Return the energy of a run, and what its script's own figures were in their last epoch."""
    ranks = [*run]
    energy = energy_j(ranks)
    result = metrics_of_ranks([each for rank in ranks if (each := rank.cached(script_metrics))])
    return {
        **({} if energy is None else {ENERGY: energy}),
        **({} if result is None else {name: of[-1].mean for name, of in result.epochs.items()}),
    }


def own_title(name: str) -> str:
    """Return what tables call a figure of `last_figures`."""
    return "energy" if name == ENERGY else f"{name}, last epoch"
