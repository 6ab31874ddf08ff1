"""One run, ready to be shown: what it was, was measured, is concluded, and is missing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

import msgspec
from msgspec.structs import replace

from iobench.analysis.break_even import predict_full_conversion
from iobench.analysis.diagnosis import Diagnosis, diagnose
from iobench.analysis.epochs import epoch_figures
from iobench.analysis.processes import process_work
from iobench.json_keys import HIDDEN, INLINE, key
from iobench.registry import installed_findings

if TYPE_CHECKING:
    from iobench.analysis.break_even import FullConversion
    from iobench.analysis.epochs import EpochFigures
    from iobench.analysis.exposure_figures import Exposure, PartExposure
    from iobench.analysis.processes import ProcessWork
    from iobench.analysis.run import RankRun, Run
    from iobench.recording.facts import ProcessFacts
    from iobench.runs.contents import Process
    from iobench.runs.run_facts import RunFacts

SOURCE: Final = "source"


class RunReport(msgspec.Struct, frozen=True):
    """All that is shown of one run.

    Parameters
    ----------
    run : str or None
        The run directory.
    unclosed : tuple of str
        Processes that did not end their span file themselves: killed, or still running.
    damaged : tuple of str
        Processes whose span file holds spans that cannot be read.
    conversion : FullConversion or None
        What converting the whole dataset would take; None for a run on the original files.
    told : tuple of ProcessFacts
        What the processes of this rank of a script told of themselves.
    processes : tuple of ProcessWork
        What each process did; only where nothing was waited for, and there is no exposure to show.
    job_size : int
        Training processes of its job, 1 where it is none.
    epochs : tuple of EpochFigures
        Epoch by epoch; empty for one of many ranks.
    figures : mapping of str to dataclass
        The answer to each question asked of a run (`iobench.findings.contract`), by its name; None
        where there is nothing to say.
    for_job : mapping of str to dataclass
        The same for questions asked of a job alone.
    """

    run: str | None
    facts: RunFacts
    exposure: Exposure
    diagnosis: Diagnosis
    unclosed: tuple[str, ...] = ()
    damaged: tuple[str, ...] = ()
    conversion: FullConversion | None = None
    told: tuple[ProcessFacts, ...] = ()
    processes: tuple[ProcessWork, ...] = ()
    job_size: int = 1
    figures: Mapping[str, Any] = msgspec.field(default_factory=dict)
    for_job: Mapping[str, Any] = msgspec.field(default_factory=dict)
    epochs: tuple[EpochFigures, ...] = ()
    JSON_KEYS: ClassVar = {
        "facts": INLINE,
        "exposure": INLINE,
        "unclosed": key("unclosed_processes"),
        "damaged": key("damaged_processes"),
        "conversion": key("full_conversion"),
        "told": HIDDEN,
        "job_size": HIDDEN,
        "figures": INLINE,
        "for_job": HIDDEN,
        "epochs": HIDDEN,
    }

    @property
    def judged(self) -> PartExposure:
        """The window that the verdict is about."""
        return self.exposure.judged

    @property
    def wait_fraction(self) -> float | None:
        """Exposed share of the time judged; None where no batch was delivered."""
        return self.judged.wait_fraction if self.judged.n_batches else None


def make_reports(runs: Iterable[Run]) -> tuple[RunReport, ...]:
    """Analyse runs, one after another; there is one report for each training process.

    The original files come first, the rest keeps its order.

    Raises
    ------
    ProfileError
        If one cannot be analysed.
    """
    reports = sorted(_reports(runs), key=lambda report: report.facts.format != SOURCE)
    source = next((each for each in reports if each.facts.label == SOURCE), None)
    return tuple(replace(report, conversion=_conversion(report, source)) for report in reports)


def _conversion(report: RunReport, source: RunReport | None) -> FullConversion | None:
    facts = report.facts
    known = facts.store
    if known is None or not known.n_samples or known.n_samples_all is None or known.nbytes is None:
        return None
    if known.target is not None:  # converted already, by whoever named it
        return None
    return predict_full_conversion(
        n_samples=known.n_samples_all,
        probe_n_samples=known.n_samples,
        probe_nbytes=known.nbytes,
        probe_convert_s=known.convert_s,
        source=None if source is None else source.judged,
        store=report.judged,
    )


def _reports(runs: Iterable[Run]) -> Iterator[RunReport]:
    for run in runs:
        for each in run:
            report = _report(each)
            yield _slim(report) if each.is_one_of_many else report


def _slim(report: RunReport) -> RunReport:
    """Return a report without the wait of every step: of many ranks they would fill the memory."""
    return replace(report, exposure=report.exposure.without_waits())


def _report(found: RankRun) -> RunReport:
    measured, profile, slim = found.exposure, found.job or found, found.is_one_of_many
    facts, findings = found.about, installed_findings()
    return RunReport(
        run=str(profile.path),
        facts=facts,
        exposure=measured,
        diagnosis=diagnose(measured),
        unclosed=tuple(_name(each, facts) for each in found.all_processes if not each.closed),
        damaged=tuple(_name(each, facts) for each in found.all_processes if each.damaged),
        told=found.own_facts,
        processes=()
        if measured.has_consumer
        else process_work(profile, rank=None if found.is_alone else found.rank),
        job_size=found.job_size,
        figures={each.name: found.cached(each.figures) for each in findings if not each.of_job},
        for_job={each.name: found.cached(each.figures) for each in findings if each.of_job},
        epochs=() if slim else found.cached(epoch_figures),
    )


def _name(process: Process, facts: RunFacts) -> str:
    """Return what a process is called; in a script several may have one name."""
    return f"{process.name} (process {process.pid})" if facts.is_script else process.name
