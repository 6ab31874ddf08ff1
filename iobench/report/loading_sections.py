"""The sections on loading: verdict, stages, waits, epochs and loaders of a run; runs compared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from iobench.analysis.diagnosis import Verdict
from iobench.analysis.exposure_figures import StageExposure
from iobench.recording.kinds import MIXED_KINDS, Kind, Trait, kind_named, stage_title
from iobench.report import units
from iobench.report.document import (
    NOT_APPLICABLE,
    Bar,
    BarPart,
    Column,
    Drawing,
    KeyFigure,
    KeyFigures,
    Quantity,
    Section,
    Sentence,
    Table,
    columns,
    quantities,
    sentences,
)
from iobench.report.sentences import (
    PARTS,
    between_words,
    loader_words,
    long_waits_sentence,
    step_words,
    steps_sentence,
    verdict_sentence,
)
from iobench.report.setting import decoded_sentences, setting_sentences, stand_in_sentences
from iobench.runs.run_facts import PUBLISHED_FIGURES, SOURCE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from iobench.analysis.diagnosis import Diagnosis
    from iobench.analysis.epochs import EpochFigures
    from iobench.analysis.exposure_figures import (
        Exposure,
        LoaderExposure,
        StepStatistics,
        Window,
    )
    from iobench.analysis.processes import ProcessWork
    from iobench.report.document import Cell, Style
    from iobench.report.run_report import RunReport
    from iobench.runs.run_facts import RunFacts, StoreFacts

WAIT_UNIT: Final = "ms"
"""Waits per step reach from microseconds to minutes; published ones are tenths of a second."""
MOST_EPOCHS: Final = 5
MOST_LOADERS: Final = 16
PART_ORDER: Final[tuple[Window, ...]] = ("whole", "recurring", "steady")
STYLES: Final[Mapping[Verdict, Style]] = {
    Verdict.HIDDEN: "good",
    Verdict.PARTLY_HIDDEN: "fair",
    Verdict.IO_BOUND: "bad",
}
STORES: Final = ("ExtentStore", "ChunkedStore", "OpenedStore", "OpenedChunkedStore")
"""What loaders of a script call a store that they load."""
ALWAYS_SHOWN: Final = (Kind.READ, Kind.DECODE, Kind.PREPROCESS, Kind.H2D)
STAGES_LEAD: Final = (
    "Busy time of all processes by stage: exposed (the training loop waited for it) or hidden "
    "behind compute."
)


def verdict_of(diagnosis: Diagnosis, name: str = "") -> Sentence:
    """Return what is concluded of a run, in its colour; ``name`` tells it from others."""
    text = f"{name}: " * bool(name) + verdict_sentence(diagnosis)
    return Sentence(text, STYLES.get(diagnosis.verdict, "strong"))


def verdict_section(report: RunReport, *, with_setting: bool = True) -> Section:
    """Return what is concluded of a run, the figures that say it, and how it came about."""
    exposure, facts = report.exposure, report.facts
    has_batches = exposure.has_consumer and bool(exposure.whole.n_batches)
    described = f"This pipeline: {facts.described_by}" if facts.described_by else ""
    return Section(
        "verdict",
        "Verdict",
        (
            verdict_of(report.diagnosis),
            *(stand_in_sentences([report]) if with_setting else ()),
            *((KeyFigures(tuple(_key_figures(report))),) if has_batches else ()),
            *sentences((*decoded_sentences(exposure.whole, facts), described)),
            *(setting_sentences([report]) if with_setting else ()),
        ),
    )


def _key_figures(report: RunReport) -> Iterator[KeyFigure]:
    """Yield the figures that are said first."""
    exposure = report.exposure
    window, whole, wait = exposure.judged, exposure.whole, exposure.judged.wait
    when = PARTS[exposure.window]
    (share, text), *others = _exposed_shares(exposure)
    rest = "; ".join((text, *(f"{units.fraction(other)} {words}" for other, words in others)))
    median, most = (units.duration(statistic(wait, each)) for each in ("median_ns", "max_ns"))
    waits = f"on average; median {median}, maximum {most} ({when})"
    mean = Quantity(statistic(wait, "mean_ns"), "ns")
    used = Quantity(window.accelerator_utilisation, "share", "at most {}")
    rate = f"samples/s, {units.byte_rate(window.bytes_per_s)} ({when})"
    read = f"({units.nbytes(whole.read_nbytes)} for {units.nbytes(whole.used_nbytes)})"
    cold = "of the bytes read came from the device, not from memory"
    yield KeyFigure("Exposed I/O", Quantity(share, "share"), rest)
    yield KeyFigure(f"A {step_words(exposure.steps)} waits", mean, waits)
    if window.samples_per_s is not None:
        yield KeyFigure("Throughput", Quantity(window.samples_per_s, "samples/s"), rate)
    free = getattr(report.figures.get("replay"), "free_data", None)
    if free is not None and free.obtained_steps_per_s is not None:
        obtained = Quantity(free.obtained_steps_per_s, "ratio")
        yield KeyFigure("If data were free", obtained, free.words)
    if exposure.has_compute:
        is_device = has_accelerator(report)
        name = "Accelerator utilisation" if is_device else "Training loop busy"
        yield KeyFigure(name, used, f"of the time ({when})")
    if whole.read_per_byte is not None:
        per_byte = Quantity(whole.read_per_byte, "ratio")
        yield KeyFigure("Bytes read per byte used", per_byte, read)
    if whole.cold_fraction is not None:
        yield KeyFigure("Cold reads", Quantity(whole.cold_fraction, "share"), cold)


def _exposed_shares(exposure: Exposure) -> Iterator[tuple[float | None, str]]:
    """Yield what is waited, as a share of the job, of the part that is judged, and of the run."""
    job, wait_ns, wall_ns = exposure.job, exposure.all_wait_ns, exposure.all_wall_ns
    if job is not None:
        load, wall = units.duration(job.load_ns), units.duration(job.wall_ns)
        yield job.share(job.load_ns), f"of the job ({load} of {wall})"
    if exposure.window != "whole":
        yield exposure.judged.wait_fraction, f"of the {PARTS[exposure.window]}"
    passes = "the whole run" if job is None else "all passes over loaders"
    loop_ns = wall_ns - exposure.whole.own_ns
    loop_ns -= 0 if exposure.summed is None else exposure.summed.own_ns
    share = wait_ns / loop_ns if loop_ns else None
    yield share, f"of {passes} ({units.duration(wait_ns)} of {units.duration(wall_ns)})"


def statistic(statistics: StepStatistics | None, name: str) -> float | None:
    """Return one of several statistics by its name; None where there are none."""
    return None if statistics is None else getattr(statistics, name)


def stages_section(report: RunReport) -> Section:
    """Return busy, hidden and exposed time by stage of the part that is judged."""
    exposure = report.exposure
    window = exposure.judged
    shown = [row for row in window.stages if row.busy_ns or row.exposed_ns or row.n_spans]
    titles = [stage_title(row.stage) for row in shown]
    for kind, why in _absent_stages(report, shown):
        shown.append(StageExposure(kind.spelled, 0, 0, 0, None, 0, None))
        titles.append(f"{stage_title(kind.spelled)} ({why})")
    busy_ns, wait_ns = sum(row.busy_ns for row in window.stages), window.wait_ns
    between = {name: spent for name, spent in window.between_ns.items() if spent}
    rows: list[tuple[Cell, ...]] = [
        (between_words(name), Quantity(spent, "ns"), *5 * (NOT_APPLICABLE,))
        for name, spent in between.items()
    ]
    rows += (
        (
            title,
            *quantities("ns", row.busy_ns, row.hidden_ns, row.exposed_ns),
            _share(row.exposed_ns, wait_ns),
            *_stage_bytes(row),
        )
        for title, row in zip(titles, shown, strict=True)
    )
    table = Table(
        f"Stages in the {PARTS[exposure.window]}",
        (
            Column("stage"),
            *columns("busy", "hidden", "exposed", unit_group="time"),
            *columns("share of wait", "output", "output rate"),
        ),
        tuple(rows),
        total=(
            "all",
            *quantities("ns", busy_ns + sum(between.values()), busy_ns - wait_ns, wait_ns),
            *(_share(wait_ns, wait_ns), "", ""),
        ),
        bars=(
            *(Bar((BarPart("compute", spent, between_words(n)),)) for n, spent in between.items()),
            *map(_stage_bar, shown),
        ),
    )
    spoken = sentences((STAGES_LEAD, _computing(exposure) if exposure.is_script else ""))
    return Section("stages", "Where loading spends its time", (*spoken, table))


def _absent_stages(report: RunReport, shown: Sequence[StageExposure]) -> Iterator[tuple[Kind, str]]:
    """Yield the stages of every pipeline that took no time in this one, and why."""
    exposure, facts, kinds = report.exposure, report.facts, {row.kind for row in shown}
    mixed = [row.stage for row in shown if row.kind in MIXED_KINDS]
    is_stored = loads_stores(facts, exposure)
    for kind in (kind for kind in ALWAYS_SHOWN if kind not in kinds):
        # A stage of several has their names, one that nobody looked into has none.
        within = [each for each in mixed if "+" not in each or kind.spelled in each]
        if kind == Kind.H2D:
            in_loop = any(kind_named(row.stage) == kind for row in exposure.judged.compute_stages)
            other = "none recorded" if has_accelerator(report) else "no accelerator"
            yield kind, "in the loop's computing" if in_loop else other
        elif is_stored and kind != Kind.READ:
            yield kind, "done at conversion"
        elif within:
            yield kind, f"not separable from {stage_title(within[0]).partition(' (')[0]}"
        else:
            yield kind, "none recorded"


def loads_stores(facts: RunFacts, exposure: Exposure) -> bool:
    """Return whether all that is loaded are finished samples of stores."""
    used = [each for each in exposure.loaders if each.n_batches and facts.format is None]
    return facts.format not in (None, SOURCE) or (
        bool(used)
        and all(each.name in STORES or each.kind.endswith("StoreLoader") for each in used)
    )


def has_accelerator(report: RunReport) -> bool:
    """Return whether batches, or anything of a script, went to a device."""
    whole = report.exposure.whole
    stages = [row.stage for row in whole.stages if row.n_spans]
    stages += [row.stage for row in whole.compute_stages]
    copies = any(kind_named(each) == Kind.H2D for each in stages)
    return copies or report.facts.device is not None


def _computing(exposure: Exposure) -> str:
    """Return what the training loop does between waits; nothing where no stage tells of it."""
    part = exposure.judged
    parts = [(stage_title(row.stage), row.busy_ns) for row in part.compute_stages]
    shares = (
        f"{name} {units.fraction(spent_ns / part.compute_ns)}"
        for name, spent_ns in (*parts, ("rest", part.compute_rest_ns))
        if part.compute_ns
    )
    return f"Between waits the loop spends its time in: {', '.join(shares)}." if parts else ""


def _stage_bar(row: StageExposure) -> Bar:
    exposed = BarPart("exposed", max(0, row.exposed_ns), "exposed")
    hidden = BarPart("hidden", max(0, row.hidden_ns), "hidden")
    return Bar((exposed, hidden), swatch=row.kind.spelled)


def _share(part_ns: int, whole_ns: int) -> Cell:
    return Quantity(part_ns / whole_ns, "share") if whole_ns else NOT_APPLICABLE


def _stage_bytes(row: StageExposure) -> tuple[Cell, Cell]:
    """Return what a stage handed on, and how fast; nothing where it carries no bytes."""
    carries = Trait.CARRIES_BYTES in row.kind.traits
    if not carries or not (row.n_spans or row.busy_ns or row.nbytes):
        return NOT_APPLICABLE, NOT_APPLICABLE
    # Less than a microsecond per megabyte is a hand-over of what is there: no rate.
    is_moved = row.busy_ns and row.busy_ns * 1000 >= (row.nbytes or 0)
    rate = Quantity(row.busy_bytes_per_s, "B/s") if is_moved else NOT_APPLICABLE
    return Quantity(row.nbytes, "B"), rate


def waits_section(report: RunReport) -> Section:
    """Return the wait per step of the run and of its parts; below, a published one."""
    exposure, facts = report.exposure, report.facts
    published = facts.published.of_framework(facts.framework)
    parts = (exposure.whole, exposure.recurring, exposure.steady)
    rows: list[tuple[Cell, ...]] = [
        (
            PARTS[name],
            *quantities("ns", *(statistic(part.wait, f"{each}_ns") for each in PUBLISHED_FIGURES)),
            Quantity(statistic(part.wait, "n_steps"), "count"),
        )
        for name, part in zip(PART_ORDER, parts, strict=True)
        if part is not None
    ]
    if published is not None:
        times = map(units.nanoseconds, published.exposed_io_s or ())
        source = published.source or "an unknown source"
        rows.append((f"published ({source})", *quantities("ns", *times), ""))
    words = step_words(exposure.steps)
    many = "batches" if words == "batch" else "steps"
    shown = columns(*PUBLISHED_FIGURES, unit_group="wait", unit=WAIT_UNIT)
    warned = long_waits_sentence(exposure)
    return Section(
        "waits",
        f"Wait per {words}",
        (
            *sentences((steps_sentence(exposure.steps),)),
            *sentences((warned,), "caution"),
            Drawing("waits", lambda: None),
            Table("", (Column(""), *shown, Column(many)), tuple(rows)),
        ),
    )


def epochs_section(report: RunReport) -> Section | None:
    """Return what each epoch took; None without one, or with one of a run that has no others."""
    epochs = [each for each in report.epochs if each.training and each.training.n_batches]
    if len(epochs) < (1 if report.facts.is_script else 2):
        return None
    shown = epochs[:MOST_EPOCHS]
    table = Table(
        "",
        (
            *columns("epoch", "batches"),
            *columns("total", "compute", "wait", unit_group="epoch"),
            Column("exposed"),
        ),
        tuple(_epoch_row(each) for each in shown),
        note=f"--json lists all {len(epochs)} epochs." if len(epochs) > MOST_EPOCHS else "",
    )
    return Section("epochs", "Epoch by epoch, with the start-up and end of each", (table,))


def _epoch_row(epoch: EpochFigures) -> tuple[Cell, ...]:
    training = epoch.training or epoch.part
    return (
        units.count(epoch.epoch),
        Quantity(training.n_batches, "count", "{}" if epoch.complete else "{} (not all)"),
        *quantities("ns", training.wall_ns, training.compute_ns, training.wait_ns),
        _share(training.wait_ns, training.wall_ns - training.own_ns),
    )


def loaders_section(exposure: Exposure) -> Section:
    """Return one row for each loader: what it is, and what of the wait was for it."""
    rows = sorted(exposure.loaders, key=lambda each: -each.wait_ns)[:MOST_LOADERS]
    table = Table(
        "",
        (
            *columns("loader", "class", "workers", "batch size", "batches"),
            *(Column("wait", "time"), Column("share of wait")),
        ),
        tuple(_loader_row(each, exposure.whole.wait_ns) for each in rows),
        note=f"--json lists all {len(exposure.loaders)}." * (len(rows) < len(exposure.loaders)),
    )
    return Section("loaders", "Loaders", (table,))


def _loader_row(each: LoaderExposure, wait_ns: int) -> tuple[Cell, ...]:
    return (
        loader_words(each).removeprefix("loader "),
        each.kind.rpartition(".")[2] or units.UNKNOWN,
        *quantities("count", each.workers or each.threads),
        *quantities("count", each.batch_size, each.n_batches),
        *quantities("ns", each.wait_ns),
        _share(each.wait_ns, wait_ns),
    )


def processes_section(processes: Sequence[ProcessWork]) -> Section | None:
    """Return what each process did, where nothing was waited for; nothing where there is none."""
    tables = tuple(_process_table(each) for each in processes if each.stages)
    return Section("processes", "Work of each process", tables, is_folded=True) if tables else None


def _process_table(process: ProcessWork) -> Table:
    return Table(
        f"{process.process} (process {process.pid}), {units.duration(process.wall_ns)}",
        (Column("stage"), Column("busy", "time"), *columns("output", "CPU time")),
        tuple(
            (
                stage_title(row.stage),
                *quantities("ns", row.busy_ns),
                Quantity(row.nbytes, "B"),
                *quantities("ns", row.cpu_ns),
            )
            for row in process.stages
        ),
    )


def _disk_nbytes(store: StoreFacts | None) -> int | None:
    """Return the bytes that a store of all samples takes, by those of the store that is loaded."""
    if store is None or not store.n_samples or store.nbytes is None:
        return None
    return store.nbytes * (store.n_samples_all or store.n_samples) // store.n_samples


def comparison_section(reports: Sequence[RunReport]) -> Section:
    """Return the verdicts, and one row for each run; in steady state if all of them have one."""
    names = [report.facts.label or units.UNKNOWN for report in reports]
    steady = all(report.exposure.steady is not None for report in reports)
    exposures = [report.exposure for report in reports]
    parts = [each.judged if steady else each.whole for each in exposures]
    disk = [_disk_nbytes(report.facts.store) for report in reports]
    has_stores = any(nbytes is not None for nbytes in disk)
    heads = ("as", "samples/s", "wait, mean", "exposed", "loaded", "bytes read per byte")
    table = Table(
        "Steady state" if steady else "Whole run",
        columns(*heads, *["on disk"] * has_stores),
        tuple(
            (
                name,
                Quantity(part.samples_per_s, "samples/s"),
                Quantity(statistic(part.wait, "mean_ns"), "ns"),
                Quantity(part.wait_fraction, "share"),
                Quantity(part.bytes_per_s, "B/s"),
                Quantity(each.whole.read_per_byte, "ratio"),
                *[Quantity(nbytes, "B")] * has_stores,
            )
            for name, each, part, nbytes in zip(names, exposures, parts, disk, strict=True)
        ),
    )
    verdicts = (verdict_of(each.diagnosis, name) for each, name in zip(reports, names, strict=True))
    return Section(
        "compared",
        "Compared",
        (*stand_in_sentences(reports), *setting_sentences(reports), *verdicts, table),
    )
