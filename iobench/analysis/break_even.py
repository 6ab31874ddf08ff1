"""When what is spent once before the epochs, converting or staging, has paid for itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from iobench.analysis.exposure_figures import PartExposure


class BreakEven(msgspec.Struct, frozen=True):
    """When what is spent once has been saved again, epoch by epoch.

    ``staging_to_epoch`` is T_staging / T_epoch, the compute-to-staging throughput ratio of MLPerf
    HPC (Farrell et al. 2021, arXiv:2110.11466, section II).
    """

    epochs: float | None  # until it has paid; None where it never does, or that is unknown
    never: bool  # whether epochs get no shorter
    staging_to_epoch: float | None

    @classmethod
    def of(cls, spent_s: float | None, epoch_s: float | None, saved_s: float | None) -> BreakEven:
        """Return when it has paid, where an epoch took ``epoch_s`` and now ``saved_s`` less."""
        never = saved_s is not None and saved_s <= 0
        epochs = None if spent_s is None or saved_s is None or never else spent_s / saved_s
        after_s = None if epoch_s is None or saved_s is None else epoch_s - saved_s
        ratio = spent_s / after_s if spent_s is not None and after_s else None
        return cls(epochs, never, ratio)


class FullConversion(msgspec.Struct, frozen=True):
    """The conversion of every sample of a dataset; None is unknown."""

    n_samples: int
    nbytes: int
    convert_s: float | None
    saved_s: float | None  # of an epoch over all samples; below 0 where it is longer
    payback_epochs: float | None  # None where it never pays


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

    ``source`` and ``store`` are the judged parts of the runs on the original files and on the
    probe, which has one sample or more.
    """
    share = n_samples / probe_n_samples
    convert_s = None if probe_convert_s is None else probe_convert_s * share
    saved_s = None
    if source is not None and source.n_samples and store.n_samples:
        sample_ns = source.wall_ns / source.n_samples - store.wall_ns / store.n_samples
        saved_s = sample_ns * n_samples / 1e9
    epochs = BreakEven.of(convert_s, None, saved_s).epochs
    return FullConversion(n_samples, round(probe_nbytes * share), convert_s, saved_s, epochs)
