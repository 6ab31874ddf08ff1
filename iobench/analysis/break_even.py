"""When what is spent once before the epochs, converting or staging, has paid for itself.

Arithmetic on what was measured: samples in proportion, and the time of a sample in two runs that
took turns. Nothing is simulated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import msgspec

from iobench.json_keys import HIDDEN, figure

if TYPE_CHECKING:
    from iobench.analysis.exposure_figures import PartExposure


class BreakEven(msgspec.Struct, frozen=True):
    """When what is spent once has been saved again, epoch by epoch.

    Parameters
    ----------
    epochs : float or None
        Until it has paid; None where it never does, or that is unknown.
    never : bool
        Whether epochs get no shorter.
    staging_to_epoch : float or None
        T_staging / T_epoch, the compute-to-staging throughput ratio of MLPerf HPC (Farrell et al.
        2021, arXiv:2110.11466, section II): what is done once before the epochs is staging.
    at_least : bool
        Whether what is spent was not measured, and is at least that much.
    """

    epochs: float | None
    never: bool
    staging_to_epoch: float | None
    at_least: bool = False
    JSON_KEYS: ClassVar = {
        "at_least": HIDDEN,
    }

    @classmethod
    def of(
        cls,
        spent_s: float | None,
        epoch_s: float | None,
        saved_s: float | None,
        *,
        at_least: bool = False,
    ) -> BreakEven:
        """Return when it has paid; ``saved_s`` are what an epoch, ``epoch_s`` before, saves.

        What is spent and epochs add up: T_staging + T_epoch x epochs is the time to solution.
        """
        after_s = None if epoch_s is None or saved_s is None else epoch_s - saved_s
        never = saved_s is not None and saved_s <= 0
        return cls(
            epochs=None if spent_s is None or saved_s is None or never else spent_s / saved_s,
            never=never,
            staging_to_epoch=spent_s / after_s if spent_s is not None and after_s else None,
            at_least=at_least,
        )


class FullConversion(msgspec.Struct, frozen=True):
    """The conversion of every sample of the dataset.

    Parameters
    ----------
    n_samples : int
        Samples of the whole dataset.
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
        return BreakEven.of(self.convert_s, None, self.saved_s).epochs


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
