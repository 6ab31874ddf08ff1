"""What converting all of a dataset would take, from a probe of it, and when that pays for itself.

Arithmetic on what was measured: samples in proportion, and the time of a sample in two runs that
took turns. Nothing is simulated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from iobench.json_keys import figure

if TYPE_CHECKING:
    from iobench.analysis.exposure_figures import PartExposure

__all__ = ["FullConversion", "predict_full_conversion"]


@dataclass(frozen=True, slots=True)
class FullConversion:
    """The conversion of every sample of the dataset.

    Parameters
    ----------
    n_samples : int
        Samples of the dataset at hand.
    nbytes : int
        Size of the store.
    convert_s : float or None
        Seconds it takes at the probe's rate; None where the probe was there already.
    saved_s : float or None
        Seconds an epoch over all samples is shorter than with the original files; below 0 where
        it is longer. None where the original files were not measured in the same run.
    """

    n_samples: int
    nbytes: int
    convert_s: float | None
    saved_s: float | None

    @figure
    def payback_epochs(self) -> float | None:
        """Epochs until the conversion has paid for itself; None where unknown or never."""
        if self.convert_s is None or self.saved_s is None or self.saved_s <= 0:
            return None
        return self.convert_s / self.saved_s


def predict_full_conversion(
    *,
    n_samples: int,
    probe_n_samples: int,
    probe_nbytes: int,
    probe_convert_s: float | None,
    source: PartExposure | None,
    store: PartExposure,
) -> FullConversion:
    """Return the figures of a full conversion, in proportion to the probe's.

    Parameters
    ----------
    n_samples, probe_n_samples : int
        Samples of the dataset, and of the probe (at least 1).
    probe_nbytes : int
        Size of the probe.
    probe_convert_s : float or None
        Seconds its conversion took; None where it was there already.
    source, store : PartExposure
        What tells what a long training sees, of the run on the original files and of that on the
        store.
    """
    share = n_samples / probe_n_samples
    before_s, after_s = _seconds_per_sample(source), _seconds_per_sample(store)
    saved_s = None
    if before_s is not None and after_s is not None:
        saved_s = (before_s - after_s) * n_samples
    return FullConversion(
        n_samples=n_samples,
        nbytes=round(probe_nbytes * share),
        convert_s=None if probe_convert_s is None else probe_convert_s * share,
        saved_s=saved_s,
    )


def _seconds_per_sample(window: PartExposure | None) -> float | None:
    if window is None or not window.n_samples:
        return None
    return window.wall_ns / window.n_samples / 1e9
