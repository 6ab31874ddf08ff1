"""A run on more ranks for machines: plain values, unrounded; unknown is null."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from iobench.report.scaling_text import scaling_verdict

if TYPE_CHECKING:
    from iobench.analysis.scaling.contract import (
        Hosts,
        Saturation,
        ScalingCurve,
        ScalingPoint,
        SharedStorage,
    )
    from iobench.analysis.scaling.measured import MeasuredJob

__all__ = ["SCALING_VERSION", "scaling_to_json"]

SCALING_VERSION: Final = 1


def scaling_to_json(
    curve: ScalingCurve,
    job: MeasuredJob,
    storage: SharedStorage,
    hosts: Hosts,
    *,
    allreduce_ms: float,
) -> dict[str, Any]:
    """Return the curve, its verdict and what it was made from.

    - ``schema_version``; ``run``; ``verdict``: sentences.
    - ``measured``: ``ranks``, ``ranks_looked_at``, ``rule``, ``workers``, ``batches_ahead``,
      ``batch_size``, ``batches``, ``sample_nbytes`` (read for a sample), ``delivered_nbytes``
      (of a sample as the loop gets it; null: not known), ``reads_per_sample``,
      ``step_ns`` (null: not known), ``compute_median_ns``, ``cold_fraction``, ``reading_known``,
      ``loaders``, ``folded_batches`` (before those measured: of them there are sums only).
    - ``model_error_fraction``, ``seeds``, ``allreduce_ms``; ``storage`` and ``nodes`` as given.
    - ``saturation``, ``later_saturation``: ``ranks`` (null: not with a million), ``by``
      (``"bandwidth"``, ``"reads"``); null without a bound, or without caches;
      ``node_saturation``, ``later_node_saturation`` likewise, by ``"node bandwidth"``.
    - ``first_epoch``, ``later_epochs``: for each number of ``ranks`` ``nodes``,
      ``samples_per_s`` and ``exposed_fraction`` (``median``, ``low``, ``high``), ``efficiency``,
      ``storage_fraction``, ``bytes_per_s``, ``reads_per_s``, ``step_ns``, ``free_step_ns`` (with
      a storage without bounds), ``cache``, ``is_bound``.
    """
    demand = job.demand
    return {
        "schema_version": SCALING_VERSION,
        "run": job.name,
        "verdict": scaling_verdict(curve),
        "measured": {
            "ranks": demand.n_ranks,
            "ranks_looked_at": job.n_looked_at,
            "rule": demand.rule.value,
            "workers": demand.workers,
            "batches_ahead": demand.ahead,
            "batch_size": demand.batch_size,
            "batches": len(demand),
            "sample_nbytes": float(demand.nbytes.mean()) / demand.batch_size,
            "delivered_nbytes": job.delivered_nbytes,
            "reads_per_sample": job.reads_per_sample,
            "step_ns": job.step_ns,
            "compute_median_ns": float(np.median(demand.compute_ns)),
            "cold_fraction": job.cold_fraction,
            "reading_known": demand.reading_known,
            "loaders": job.n_loaders,
            "folded_batches": job.n_folded,
        },
        "model_error_fraction": curve.model_error_fraction,
        "seeds": curve.n_seeds,
        "allreduce_ms": allreduce_ms,
        "storage": {
            "bytes_per_s": storage.bytes_per_s,
            "reads_per_s": storage.reads_per_s,
            "read_latency_ns": storage.read_latency_ns,
            "reader_bytes_per_s": storage.reader_bytes_per_s,
            "node_bytes_per_s": storage.host_bytes_per_s,
        },
        "nodes": {
            "number": hosts.n_hosts,
            "ranks_per_node": hosts.ranks_per_host if hosts.n_hosts is None else None,
            "cache_nbytes": hosts.cache_nbytes,
            "dataset_nbytes": hosts.dataset_nbytes,
            "own_shards": hosts.own_shards,
        },
        "saturation": _saturation(curve.saturation),
        "later_saturation": _saturation(curve.later_saturation),
        "node_saturation": _saturation(curve.host_saturation),
        "later_node_saturation": _saturation(curve.later_host_saturation),
        "first_epoch": [_point(point) for point in curve.first_epoch],
        "later_epochs": [_point(point) for point in curve.later_epochs],
    }


def _saturation(found: Saturation | None) -> dict[str, Any] | None:
    return None if found is None else asdict(found)


def _point(point: ScalingPoint) -> dict[str, Any]:
    values = asdict(point)
    values["nodes"] = values.pop("hosts")
    return values
