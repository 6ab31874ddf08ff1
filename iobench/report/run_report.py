"""One run, ready to be shown: what it was, was measured, is concluded, and is missing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from iobench.analysis import Diagnosis, diagnose, exposure
from iobench.report.facts import RunFacts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iobench.analysis import Exposure, Window
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
    """

    run: str | None
    facts: RunFacts
    exposure: Exposure
    diagnosis: Diagnosis
    unclosed: tuple[str, ...] = ()
    damaged: tuple[str, ...] = ()

    @property
    def judged(self) -> Window:
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
    reports = [_report(profile) for profile in profiles]
    return tuple(sorted(reports, key=lambda report: report.facts.format != SOURCE))


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
