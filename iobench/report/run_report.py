"""One run, ready to be shown: what it was, was measured, is concluded, and is missing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from iobench.analysis import Diagnosis, diagnose, exposure, predict_full_conversion
from iobench.report.facts import RunFacts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iobench.analysis import Exposure, FullConversion, PartExposure
    from iobench.profiles import Profile

__all__ = ["SOURCE", "RunReport", "make_reports"]

SOURCE: Final = "source"


@dataclass(frozen=True, slots=True)
class RunReport:
    """All that is shown of one run.

    Parameters
    ----------
    run : str or None
        The run directory.
    facts : RunFacts
    exposure : Exposure
    diagnosis : Diagnosis
    unclosed : tuple of str
        Processes that did not end their span file themselves: killed, or still at work.
    damaged : tuple of str
        Processes whose span file holds spans that cannot be read.
    conversion : FullConversion or None
        What converting the whole dataset would take; None for a run on the original files.
    """

    run: str | None
    facts: RunFacts
    exposure: Exposure
    diagnosis: Diagnosis
    unclosed: tuple[str, ...] = ()
    damaged: tuple[str, ...] = ()
    conversion: FullConversion | None = None

    @property
    def judged(self) -> PartExposure:
        """The window that the verdict is about: the steady state, else the whole run."""
        return self.exposure.steady or self.exposure.whole

    @property
    def wait_fraction(self) -> float | None:
        """Exposed share of the time judged; None where no batch was delivered."""
        return self.judged.wait_fraction if self.judged.n_batches else None


def make_reports(profiles: Sequence[Profile]) -> tuple[RunReport, ...]:
    """Analyse profiles; the original files come first, the rest keeps its order.

    Raises
    ------
    ProfileError
        If one cannot be analysed.
    """
    reports = sorted(map(_report, profiles), key=lambda report: report.facts.format != SOURCE)
    source = next((each for each in reports if each.facts.label == SOURCE), None)
    return tuple(replace(report, conversion=_conversion(report, source)) for report in reports)


def _conversion(report: RunReport, source: RunReport | None) -> FullConversion | None:
    facts = report.facts
    if facts.store_n_samples is None or facts.n_samples_all is None or facts.store_nbytes is None:
        return None
    return predict_full_conversion(
        n_samples=facts.n_samples_all,
        probe_n_samples=facts.store_n_samples,
        probe_nbytes=facts.store_nbytes,
        probe_convert_s=facts.convert_s,
        source=None if source is None else source.exposure.steady,
        store=report.judged,
    )


def _report(profile: Profile) -> RunReport:
    facts = RunFacts.from_config(profile.config)
    measured = exposure(profile)
    return RunReport(
        run=str(profile.path),
        facts=facts,
        exposure=measured,
        diagnosis=diagnose(measured, has_compute=facts.has_compute),
        unclosed=tuple(process.name for process in profile.processes if not process.closed),
        damaged=tuple(process.name for process in profile.processes if process.damaged),
    )
