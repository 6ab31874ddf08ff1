"""Runs opened by programs and notebooks: profiles and exposures that also show themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from iobench.analysis import run as analysis_run
from iobench.analysis.exposure_figures import Exposure
from iobench.runs import reading
from iobench.runs.contents import RunData

if TYPE_CHECKING:
    from pathlib import Path


class ShownExposure(Exposure, frozen=True):
    """An `Exposure` that notebooks show as a table, and that becomes plain values for JSON."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, with the keys that ``iobench report --json`` has."""
        from iobench.report.json_report import exposure_to_dict

        return exposure_to_dict(self)

    def _repr_html_(self) -> str:
        from iobench.report.notebook import exposure_fragment

        return exposure_fragment(self)


class OpenedProfile(RunData, frozen=True):
    """A `RunData` that notebooks show as a report, and that tells its exposure."""

    def exposure(self) -> ShownExposure:
        """Return who was waited for: `iobench.exposure` of this profile."""
        return exposure(self)

    def _repr_html_(self) -> str:
        from iobench.report.notebook import profile_fragment

        return profile_fragment(self)


def open_profile(path: Path | str, *, rank: int | None = None) -> OpenedProfile:
    """Read one run directory, also of a run that died or still goes on.

    Span files it left in a spool on this machine are gathered first.

    Parameters
    ----------
    path : Path or str
        The run directory.
    rank : int, optional
        Read the spans of this training process and of its loading processes only.

    Raises
    ------
    ProfileError
        If it is no run directory, of another version, or mixes spans of two boots of a machine;
        or if no such training process recorded.
    """
    return OpenedProfile(**_values(reading.open_profile(path, rank=rank)))


def exposure(profile: RunData, *, rank: int | None = None) -> ShownExposure:
    """Return who a training process waited for, for how long, and what stayed hidden.

    Parameters
    ----------
    profile : RunData
        A run with any number of loading processes, or none.
    rank : int, optional
        Which training process; may be left out where only one recorded.

    Returns
    -------
    ShownExposure
        All times in integer ns; the stages' exposed time adds up to the wait exactly.

    Raises
    ------
    ProfileError
        If several training processes recorded and none is named, or the waits of one overlap.
    """
    return ShownExposure(**_values(analysis_run.exposure(profile, rank=rank)))


def _values(found: RunData | Exposure) -> dict[str, Any]:
    return msgspec.structs.asdict(found)
