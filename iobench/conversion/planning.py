"""What a conversion will take, before it is run: arithmetic on what is known and measured.

Pure: no files, no clock. What is measured comes from `iobench.conversion.probing`.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from iobench.analysis.conversion import FullConversion

__all__ = ["ConversionForecast", "KnownSource", "KnownTarget", "MeasuredProbe", "plan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownSource:
    """What is known of the source without reading its samples.

    Parameters
    ----------
    n_samples : int
        Samples to convert, at least 1.
    sample_nbytes : int
        Bytes of one as the dataset makes it.
    files_nbytes : int
        Bytes of all its files.
    read_nbytes : int or None
        Bytes the conversion will read of them; None where only a probe tells.
    needed_nbytes : int or None
        Bytes of all that is stored of these samples, each counted once; None where the dataset
        does not tell. Then the files' size stands for it where more than that is read.
    group_nbytes : int or None
        Most of what is read and decoded of samples that are made together, in bytes; None where
        samples are made one by one.
    n_looks : int
        Times all samples have to be made: 1, and once more where values have to be looked at
        before the first can be written.
    """

    n_samples: int
    sample_nbytes: int
    files_nbytes: int
    read_nbytes: int | None = None
    needed_nbytes: int | None = None
    group_nbytes: int | None = None
    n_looks: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownTarget:
    """What is asked for and what is there of it.

    Parameters
    ----------
    stored_nbytes : int
        Bytes of a sample's arrays as they are stored.
    shard_n_samples : int
        Samples of a full shard.
    memory_nbytes, workers : int
        As asked for.
    free_nbytes : int or None
        On the target's file system; None where nobody tells.
    nbytes_there : int
        Bytes of the store that an earlier run left.
    step_s : float or None
        Seconds of the training step for each sample of its batch; None where unknown.
    """

    stored_nbytes: int
    shard_n_samples: int
    memory_nbytes: int
    workers: int
    free_nbytes: int | None
    nbytes_there: int = 0
    step_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredProbe:
    """A short conversion of a few samples.

    Parameters
    ----------
    n_samples : int
        Samples it converted, at least 1.
    convert_s : float
        Seconds it took.
    store_nbytes : int
        Bytes of all files it wrote.
    sample_read_nbytes : int
        Bytes read from the source for one sample by itself.
    sample_decoded_nbytes : int
        Bytes of the arrays of one sample before preprocessing.
    source_sample_s, store_sample_s : float
        Seconds one process takes to load one sample from the source, and from the store.
    """

    n_samples: int
    convert_s: float
    store_nbytes: int
    sample_read_nbytes: int
    sample_decoded_nbytes: int
    source_sample_s: float
    store_sample_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversionForecast:
    """What `plan` says.

    Parameters
    ----------
    n_samples, n_shards, shard_n_samples : int
        Of the finished store.
    in_nbytes, out_nbytes : int
        Bytes read from the source, and bytes of the finished store.
    read_amplification : float
        Bytes read over the bytes that are needed: 1.0 reads each once.
    passes : int
        Times the samples' bytes are gone through: the read amplification, rounded up.
    peak_nbytes : int
        Most of the data that is in memory at once, besides the process itself.
    free_needed_nbytes : int
        Space still needed.
    free_nbytes : int or None
        What there is; None where nobody tells.
    convert_s : float
        Seconds for what is still to be done, at the probe's rate.
    load_source_s, load_store_s : float
        Seconds of loading in an epoch with that many workers, were there no training.
    saved_s : float or None
        Seconds an epoch gets shorter, below 0 where it gets longer; None without a step time.
    payback_epochs : float or None
        Epochs after which the conversion has paid for itself; None where unknown or never.
    """

    n_samples: int
    n_shards: int
    shard_n_samples: int
    in_nbytes: int
    out_nbytes: int
    read_amplification: float
    passes: int
    peak_nbytes: int
    free_needed_nbytes: int
    free_nbytes: int | None
    convert_s: float
    load_source_s: float
    load_store_s: float
    saved_s: float | None
    payback_epochs: float | None

    @property
    def fits(self) -> bool:
        """Whether there is room for the store, as far as is known."""
        return self.free_nbytes is None or self.free_needed_nbytes <= self.free_nbytes

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as JSON-ready values."""
        return {**asdict(self), "fits": self.fits}


def plan(source: KnownSource, target: KnownTarget, probe: MeasuredProbe) -> ConversionForecast:
    """Return what a conversion will take.

    Examples
    --------
    >>> forecast = plan(
    ...     KnownSource(n_samples=100, sample_nbytes=10, files_nbytes=500),
    ...     KnownTarget(
    ...         stored_nbytes=10, shard_n_samples=40, memory_nbytes=1000, workers=2,
    ...         free_nbytes=10**6, step_s=0.0,
    ...     ),
    ...     MeasuredProbe(
    ...         n_samples=10, convert_s=1.0, store_nbytes=120, sample_read_nbytes=10,
    ...         sample_decoded_nbytes=10, source_sample_s=0.4, store_sample_s=0.2,
    ...     ),
    ... )
    >>> forecast.n_shards, forecast.in_nbytes, forecast.out_nbytes, forecast.passes
    (3, 1000, 1200, 2)
    >>> forecast.convert_s, forecast.saved_s, forecast.payback_epochs
    (10.0, 10.0, 1.0)
    """
    once = source.read_nbytes
    if once is None:
        once = source.n_samples * probe.sample_read_nbytes
    in_nbytes = once * source.n_looks
    needed = source.needed_nbytes
    if needed is None:
        needed = min(once, source.files_nbytes)
    amplification = in_nbytes / needed if needed else float(source.n_looks)
    share = source.n_samples / probe.n_samples
    out_nbytes = round(probe.store_nbytes * share)
    left = max(0.0, 1 - target.nbytes_there / out_nbytes) if out_nbytes else 1.0
    load_source_s = source.n_samples * probe.source_sample_s / target.workers
    load_store_s = source.n_samples * probe.store_sample_s / target.workers
    convert_s = probe.convert_s * share * left * source.n_looks
    saved_s = None
    if target.step_s is not None:
        # Loading hides behind the steps as far as they last.
        compute_s = source.n_samples * target.step_s
        saved_s = max(load_source_s, compute_s) - max(load_store_s, compute_s)
    full = FullConversion(source.n_samples, out_nbytes, convert_s, saved_s)
    return ConversionForecast(
        n_samples=source.n_samples,
        n_shards=-(-source.n_samples // target.shard_n_samples),
        shard_n_samples=target.shard_n_samples,
        in_nbytes=in_nbytes,
        out_nbytes=out_nbytes,
        read_amplification=amplification,
        passes=max(1, math.ceil(amplification - 1e-9)),
        peak_nbytes=_peak(source, target, probe),
        free_needed_nbytes=max(0, out_nbytes - target.nbytes_there),
        free_nbytes=target.free_nbytes,
        convert_s=convert_s,
        load_source_s=load_source_s,
        load_store_s=load_store_s,
        saved_s=saved_s,
        payback_epochs=full.payback_epochs,
    )


def _peak(source: KnownSource, target: KnownTarget, probe: MeasuredProbe) -> int:
    """Return the bytes held at once: what is allowed, or more where one sample or group is."""
    if source.group_nbytes is not None:
        return max(source.group_nbytes, min(target.memory_nbytes, 2 * source.group_nbytes))
    one = probe.sample_read_nbytes + probe.sample_decoded_nbytes + source.sample_nbytes
    one += target.stored_nbytes
    return max(one, min(target.memory_nbytes, source.n_samples * one))
