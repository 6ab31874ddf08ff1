"""A run on more ranks: simulated from what was measured, with a storage that all share."""

from iobench.analysis.scaling.contract import (
    BANDWIDTH,
    READS,
    CacheUse,
    Hosts,
    Saturation,
    ScalingCurve,
    ScalingPoint,
    SharedStorage,
    Spread,
)
from iobench.analysis.scaling.curve import BOUND_FACTOR, MOST_RANKS, simulate_ranks
from iobench.analysis.scaling.demand import RankDemand, rank_demand
from iobench.analysis.scaling.measured import MeasuredJob, measured_job
from iobench.analysis.scaling.saturation import FARTHEST

__all__ = [
    "BANDWIDTH",
    "BOUND_FACTOR",
    "FARTHEST",
    "MOST_RANKS",
    "READS",
    "CacheUse",
    "Hosts",
    "MeasuredJob",
    "RankDemand",
    "Saturation",
    "ScalingCurve",
    "ScalingPoint",
    "SharedStorage",
    "Spread",
    "measured_job",
    "rank_demand",
    "simulate_ranks",
]
