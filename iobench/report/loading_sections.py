"""The sections on one run's loading: the verdict, stages, waits, bytes and phases."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from iobench.analysis.diagnosis import Verdict
from iobench.recording.kinds import Kind, Trait, kind_named, stage_title
from iobench.report import lines, script_lines, units
from iobench.report.device_lines import copies_line
from iobench.report.document import (
    NOT_APPLICABLE,
    Bar,
    BarPart,
    Chart,
    Column,
    Drawing,
    KeyFigure,
    KeyFigures,
    Quantity,
    Section,
    Sentence,
    Table,
    sentences,
)
from iobench.report.sentences import (
    PARTS,
    kept_words,
    long_waits_sentence,
    starts_sentence,
    step_words,
    steps_sentences,
    verdict_sentence,
)
from iobench.runs.run_facts import PUBLISHED_FIGURES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from iobench.analysis.diagnosis import Diagnosis
    from iobench.analysis.epochs import EpochFigures
    from iobench.analysis.exposure_figures import (
        Exposure,
        PartExposure,
        StageExposure,
        StepStatistics,
    )
    from iobench.analysis.job_figures import JobTime
    from iobench.report.document import Block, Cell, Style
    from iobench.report.run_report import RunReport
    from iobench.runs.run_facts import PublishedWait

WAIT_UNIT: Final = "ms"
"""Waits per step reach from microseconds to minutes; published ones are tenths of a second."""
WORTH_A_PART: Final = 0.005
"""Share of the time from which a wait for a stage is a piece of its own in the bar of time."""
MOST_EPOCHS: Final = 5
STYLES: Final[Mapping[Verdict, Style]] = {
    Verdict.HIDDEN: "good",
    Verdict.PARTLY_HIDDEN: "fair",
    Verdict.IO_BOUND: "bad",
}
PHASES: Final = {
    "startup": "start-up: first batch",
    "fill": "filling the pipeline",
    "first epoch": "first epoch",
    "steady": "steady state",
    "drain": "end: no batch left",
}
STAGES_LEAD: Final = (
    "Busy time of all processes by stage: exposed (the training loop waited for it) or hidden "
    "behind compute. Only exposed time keeps the training loop waiting."
)


def verdict_told(diagnosis: Diagnosis, name: str = "") -> Sentence:
    """Return what is concluded of a run, in its colour; ``name`` tells it from others."""
    text = f"{name}: " * bool(name) + verdict_sentence(diagnosis)
    return Sentence(text, STYLES.get(diagnosis.verdict, "strong"))


def verdict_section(report: RunReport, *, with_setting: bool = True) -> Section:
    """Return what is concluded of a run, the figures that say it, and how it came about."""
    exposure, facts = report.exposure, report.facts
    evidence = [
        copies_line(exposure.judged) or "",
        lines.decoded_line(exposure.whole, facts) or "",
        f"This pipeline: {facts.described_by}" if facts.described_by else "",
    ]
    return Section(
        "verdict",
        "Verdict",
        (
            verdict_told(report.diagnosis),
            *(stand_in_sentences([report]) if with_setting else ()),
            *_lost_sentences(report.exposure),
            *time_bar(exposure),
            *_headline(exposure),
            *sentences(text for text in evidence if text),
            *(setting_sentences([report]) if with_setting else ()),
        ),
    )


def stand_in_sentences(reports: Sequence[RunReport]) -> tuple[Sentence, ...]:
    """Return the banner of runs on generated files, once."""
    known = (lines.stand_in_line(each.facts) for each in reports if not each.facts.is_script)
    return sentences((text for text in dict.fromkeys(known) if text), "caution")


def _lost_sentences(exposure: Exposure) -> tuple[Sentence, ...]:
    if not exposure.lost_spans and not exposure.missing_workers:
        return ()
    text = (
        f"The record is incomplete: {units.count(exposure.lost_spans)} spans lost; missing "
        f"workers: {', '.join(exposure.missing_workers) or 'none'}. What they would explain is "
        "unknown."
    )
    return (Sentence(text, "caution"),)


def setting_sentences(reports: Sequence[RunReport]) -> tuple[Sentence, ...]:
    """Return what took the place of the training step and whose reader was used, each once."""
    known: list[str | None] = []
    for report in reports:
        if report.facts.is_script:
            known.append(script_lines.measured_compute_line(report))
        else:
            known += [lines.compute_line(report.facts), lines.reader_line(report.facts)]
    return sentences(text for text in dict.fromkeys(known) if text)


def _headline(exposure: Exposure) -> tuple[Block, ...]:
    """Return the figures that are said first, or why there are none."""
    unknown = lines.why_unknown(exposure)
    if unknown:
        return (Sentence(unknown, "strong"),)
    window, whole = exposure.judged, exposure.whole
    when = PARTS[exposure.window]
    wait_ns, wall_ns = exposure.all_wait_ns, exposure.all_wall_ns
    share = Quantity(wait_ns / wall_ns if wall_ns else None, "share")
    of_what = "the whole run" if exposure.job is None else "all passes over loaders"
    rest = f"of {of_what} ({units.duration(wait_ns)} of {units.duration(wall_ns)})"
    if exposure.window == "whole":
        rest += ", too short to have a steady state"
    else:
        rest = f"of the {when}; {units.fraction(share.value)} {rest}"
        share = Quantity(window.wait_fraction, "share")
    if exposure.job is not None:
        rest = f"{_of_job(exposure.job)}; {units.fraction(share.value)} {rest}"
        share = Quantity(exposure.job.share(exposure.job.load_ns), "share")
    retained = kept_words(whole.n_batches, exposure.n_summed)
    if retained:
        part = units.fraction(whole.wait_fraction)
        rest += f", from exact sums. All other figures cover {retained}: {part} of their time"
    communicates = any(kind_named(row.stage) is Kind.COMM for row in window.compute_stages)
    also = ", or in collective operations" if communicates else ""
    wait, words = window.wait, step_words(exposure.steps)
    one, _, of_several = words.partition(" ")
    figures = [
        KeyFigure("Exposed I/O", share, rest),
        KeyFigure(
            f"A {one} waits",
            Quantity(told_of(wait, "mean_ns"), "ns"),
            f"on average{f', {of_several}' if of_several else ''}; median "
            f"{units.duration(told_of(wait, 'median_ns'))}, maximum "
            f"{units.duration(told_of(wait, 'max_ns'))} ({when})",
        ),
        KeyFigure(
            "Throughput",
            Quantity(window.samples_per_s, "samples/s"),
            f"samples/s delivered, {units.byte_rate(window.bytes_per_s)} ({when}, "
            f"{units.count(window.n_batches)} batches)",
        ),
    ]
    if exposure.has_compute:
        figures.append(
            KeyFigure(
                "Accelerator utilisation",
                Quantity(window.accelerator_utilisation, "share"),
                f"of the time spent computing{also} ({when})",
            )
        )
    if whole.cold_fraction is not None:
        figures.append(
            KeyFigure(
                "Cold reads",
                Quantity(whole.cold_fraction, "share"),
                "of the bytes read came from the device, not from memory",
            )
        )
    return (KeyFigures(tuple(figures)),)


def _of_job(job: JobTime) -> str:
    """Return what of a job's time goes into getting data."""
    text = f"of the job ({units.duration(job.load_ns)} of {units.duration(job.wall_ns)}"
    before_ns = job.part("initial_load").ns + job.part("stage_in").ns
    if before_ns:
        text += f", {units.duration(before_ns)} of it before the first loop"
    return f"{text})"


def told_of(statistics: StepStatistics | None, name: str) -> float | None:
    """Return one of several statistics by its name; None where there are none."""
    return None if statistics is None else getattr(statistics, name)


def time_bar(exposure: Exposure) -> tuple[Chart, ...]:
    """Return the time judged as one bar: compute, then the wait by what it was for."""
    part = exposure.judged
    if not part.wall_ns or not exposure.whole.n_batches:
        return ()
    title = (
        f"{PARTS[exposure.window].capitalize()}, {units.duration(part.wall_ns)}: computing "
        f"{units.duration(part.compute_ns)}, waiting for data {units.duration(part.wait_ns)}"
    )
    return (Chart(title, (Bar(tuple(_time_parts(part))),)),)


def _time_parts(part: PartExposure) -> Iterator[BarPart]:
    yield BarPart("compute", part.compute_ns, "computing")
    rest = 0
    for row in part.stages:
        if row.exposed_ns >= WORTH_A_PART * part.wall_ns:
            yield BarPart("exposed", row.exposed_ns, f"waiting for {stage_title(row.stage)}")
        else:
            rest += row.exposed_ns
    yield BarPart("exposed", rest, "waiting for other stages")


def stages_section(exposure: Exposure) -> Section:
    """Return busy, hidden and exposed time by stage of the part that is judged."""
    return Section(
        "stages",
        "Where loading spends its time",
        (
            Sentence(STAGES_LEAD),
            _stage_table(exposure),
            *sentences(lines.estimated_lines(exposure.whole)),
        ),
    )


def _stage_table(exposure: Exposure) -> Table:
    """Return a row for each stage that takes any time, in the part judged or at any time.

    Exposed time of a step is told where a step is of several batches.
    """
    window, whole = exposure.judged, exposure.whole
    by_step = " of " in step_words(exposure.steps)
    is_part = exposure.window != "whole"
    shown = [row for row in window.stages if row.busy_ns or row.exposed_ns or row.n_spans]
    in_part = {row.stage for row in shown}
    always = {row.stage: row.exposed_ns for row in whole.stages}
    elsewhere = [row for row in whole.stages if row.exposed_ns and row.stage not in in_part]
    busy_ns = sum(row.busy_ns for row in window.stages)
    rows: list[tuple[Cell, ...]] = [
        (
            stage_title(row.stage),
            Quantity(row.busy_ns, "ns"),
            Quantity(row.hidden_ns, "ns"),
            Quantity(row.exposed_ns, "ns"),
            _share(row.exposed_ns, window.wait_ns),
            *((Quantity(row.exposed_per_step_ns, "ns"),) if by_step else ()),
            *((Quantity(always.get(row.stage, 0), "ns"),) if is_part else ()),
            Quantity(row.cpu_ns, "ns") if row.n_spans else NOT_APPLICABLE,
            *_stage_bytes(row),
        )
        for row in shown
    ]
    if elsewhere:
        exposed_ns = sum(row.exposed_ns for row in elsewhere)
        nothing = [NOT_APPLICABLE] * (5 if by_step else 4)
        rows.append(
            ("only outside of it", *nothing, Quantity(exposed_ns, "ns"), *[NOT_APPLICABLE] * 3)
        )
    return Table(
        f"Stages in the {PARTS[exposure.window]}",
        (
            Column("stage"),
            Column("busy", "time"),
            Column("hidden", "time"),
            Column("exposed", "time"),
            Column("share of wait"),
            *((Column("exposed per step", "step"),) if by_step else ()),
            *((Column("exposed in whole run", "time"),) if is_part else ()),
            Column("CPU time", is_spare=True),
            Column("output"),
            Column("output rate"),
        ),
        tuple(rows),
        total=(
            "all",
            Quantity(busy_ns, "ns"),
            Quantity(busy_ns - window.wait_ns, "ns"),
            Quantity(window.wait_ns, "ns"),
            _share(window.wait_ns, window.wait_ns),
            *([""] if by_step else []),
            *((Quantity(whole.wait_ns, "ns"),) if is_part else ()),
            *[""] * 3,
        ),
        bars=(*map(_stage_bar, shown), *([Bar(())] if elsewhere else [])),
    )


def _stage_bar(row: StageExposure) -> Bar:
    return Bar(
        (
            BarPart("exposed", max(0, row.exposed_ns), "exposed"),
            BarPart("hidden", max(0, row.hidden_ns or 0), "hidden"),
        ),
        swatch=row.kind.spelled,
    )


def _share(part_ns: int, whole_ns: int) -> Cell:
    return Quantity(part_ns / whole_ns, "share") if whole_ns else NOT_APPLICABLE


def _stage_bytes(row: StageExposure) -> tuple[Cell, Cell]:
    """Return what a stage handed on, and how fast; nothing of stages that carry no bytes."""
    if not row.nbytes and Trait.CARRIES_BYTES not in row.kind.traits:
        return NOT_APPLICABLE, NOT_APPLICABLE
    rate = Quantity(row.busy_bytes_per_s, "B/s") if row.busy_ns else NOT_APPLICABLE
    return Quantity(row.nbytes, "B"), rate


def compute_section(exposure: Exposure) -> Section | None:
    """Return what the training loop did between its waits; None where no stage tells of it."""
    part = exposure.judged
    rows = part.compute_stages
    if not rows:
        return None
    by_step = any(row.per_step_ns is not None for row in rows)

    def cells(spent_ns: int, per_step_ns: float | None = None) -> tuple[Cell, ...]:
        of_step = (NOT_APPLICABLE if per_step_ns is None else Quantity(per_step_ns, "ns"),)
        return (
            Quantity(spent_ns, "ns"),
            _share(spent_ns, part.compute_ns),
            *(of_step if by_step else ()),
        )

    return Section(
        "compute",
        "What the training loop does between waits",
        (
            Table(
                PARTS[exposure.window].capitalize(),
                (
                    *(Column("part"), Column("time", "time"), Column("share of compute")),
                    *((Column(f"a {step_words(exposure.steps)}", "step"),) if by_step else ()),
                ),
                (
                    *(
                        (stage_title(row.stage), *cells(row.busy_ns, row.per_step_ns))
                        for row in rows
                    ),
                    ("rest", *cells(part.compute_rest_ns)),
                ),
                total=("all", *cells(part.compute_ns)),
            ),
            *sentences(lines.compute_lines(exposure)),
        ),
    )


def waits_section(
    exposure: Exposure,
    published: PublishedWait | None = None,
    notes: Sequence[str] = (),
) -> Section:
    """Return the wait per step of the run and of its parts; below, a published one."""
    named = [("whole run", exposure.whole.wait)]
    for window in ("recurring", "steady"):
        part = exposure.part(window)
        if part is not None:
            named.append((PARTS[window], part.wait))
    rows: list[tuple[Cell, ...]] = [
        (name, *_wait_cells(wait), Quantity(told_of(wait, "n_steps"), "count"))
        for name, wait in named
    ]
    if published is not None:
        times = (units.nanoseconds(published.exposed_io_s[figure]) for figure in PUBLISHED_FIGURES)
        rows.append(("published", *(Quantity(each, "ns") for each in times), ""))
    long = exposure.long_waits
    words = step_words(exposure.steps)
    return Section(
        "waits",
        f"Wait per {words}",
        (
            *sentences(steps_sentences(exposure)),
            *(
                (Sentence(long_waits_sentence(long, exposure.steps), "caution"),)
                if long is not None
                else ()
            ),
            Drawing("waits", lambda: None),
            Table(
                "",
                (
                    Column(""),
                    *(Column(figure, "wait", WAIT_UNIT) for figure in PUBLISHED_FIGURES),
                    Column("batches" if words == "batch" else "steps"),
                ),
                tuple(rows),
            ),
            *sentences(notes),
        ),
    )


def _wait_cells(wait: StepStatistics | None) -> Iterator[Quantity]:
    for figure in PUBLISHED_FIGURES:
        yield Quantity(told_of(wait, f"{figure}_ns"), "ns")


def published_notes(report: RunReport) -> list[str]:
    """Return where the published wait of a step stands."""
    published = report.facts.published
    if published is None:
        return []
    source = published.source or "an unknown source"
    real = ", with samples of the real size" if report.facts.tiny else ""
    return [f"Published: the exposed I/O of a step{real}, from {source}."]


def bytes_section(exposure: Exposure) -> Section | None:
    """Return the bytes delivered and read, as far as they are known."""
    whole = exposure.whole
    rows: list[tuple[str, Quantity]] = [
        ("delivered to the loop", Quantity(whole.nbytes, "B")),
        ("read by loading processes", Quantity(whole.read_nbytes, "B")),
        ("read per byte delivered", Quantity(whole.read_per_byte, "ratio")),
    ]
    known = tuple(row for row in rows if row[1].value is not None)
    if not known:
        return None
    return Section("bytes", "Bytes read", (Table("", (Column(""), Column("")), known),))


def phases_section(report: RunReport) -> Section:
    """Return start-up, fill, steady state and end apart."""
    exposure = report.exposure
    return Section(
        "phases",
        "Start-up, fill, steady state, end",
        (
            Sentence(starts_sentence(report.diagnosis, is_script=report.facts.is_script)),
            _phase_table(exposure),
        ),
        is_folded=True,
    )


def _phase_table(exposure: Exposure) -> Table:
    whole = exposure.whole
    return Table(
        "",
        (
            Column(""),
            Column("time", "time"),
            Column("waiting", "time"),
            Column("exposed"),
            Column("calls"),
        ),
        tuple(
            (
                PHASES.get(phase.phase, phase.phase),
                Quantity(phase.wall_ns, "ns"),
                Quantity(phase.wait_ns, "ns"),
                _share(phase.wait_ns, phase.wall_ns),
                Quantity(phase.n_deliveries, "count"),
            )
            for phase in exposure.phases
        ),
        total=(
            "whole run",
            Quantity(whole.wall_ns, "ns"),
            Quantity(whole.wait_ns, "ns"),
            _share(whole.wait_ns, whole.wall_ns),
            Quantity(sum(phase.n_deliveries for phase in exposure.phases), "count"),
        ),
        bars=tuple(
            Bar(
                (
                    BarPart("exposed", phase.wait_ns, "waiting"),
                    BarPart("compute", phase.wall_ns - phase.wait_ns, "rest"),
                )
            )
            for phase in exposure.phases
        ),
    )


def epochs_section(report: RunReport) -> Section | None:
    """Return what each epoch took; None without one, or with one of a run that has no others."""
    epochs = [each for each in report.epochs if each.training and each.training.n_batches]
    if len(epochs) < (1 if report.facts.is_script else 2):
        return None
    validates = any(each.validation is not None for each in epochs)
    more, shown = len(epochs) - MOST_EPOCHS, epochs[:MOST_EPOCHS]
    validation = (Column("validation", "epoch"), Column("its wait", "epoch")) if validates else ()
    return Section(
        "epochs",
        "Epoch by epoch, with the start-up and end of each",
        (
            Table(
                "",
                (
                    *(Column("epoch"), Column("batches"), Column("total", "epoch")),
                    *(Column("compute", "epoch"), Column("wait", "epoch"), Column("exposed")),
                    *(Column("mean wait", "time"), Column("median wait", "time")),
                    *validation,
                ),
                tuple(_epoch_row(epoch, validates) for epoch in shown),
                note=f"{units.count(more)} more epochs follow; --json lists all of them."
                if more > 0
                else "",
                bars=tuple(map(_epoch_bar, shown)),
            ),
        ),
    )


def _epoch_row(epoch: EpochFigures, validates: bool) -> tuple[Cell, ...]:
    training, validation = epoch.training or epoch.part, epoch.validation
    wall_ns, wait_ns = (0, 0) if validation is None else (validation.wall_ns, validation.wait_ns)
    return (
        units.count(epoch.epoch),
        Quantity(training.n_batches, "count", "{}" if epoch.complete else "{} (not all)"),
        *(
            Quantity(each, "ns")
            for each in (training.wall_ns, training.compute_ns, training.wait_ns)
        ),
        _share(training.wait_ns, training.wall_ns),
        *(Quantity(told_of(epoch.wait, name), "ns") for name in ("mean_ns", "median_ns")),
        *((Quantity(wall_ns, "ns"), Quantity(wait_ns, "ns")) if validates else ()),
    )


def _epoch_bar(epoch: EpochFigures) -> Bar:
    training = epoch.training or epoch.part
    return Bar(
        (
            BarPart("exposed", training.wait_ns, "waiting"),
            BarPart("compute", training.compute_ns, "computing"),
        )
    )
