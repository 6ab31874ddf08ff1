"""Profiles to figures: pure functions of recorded spans, numpy and the standard library only."""

from iobench.analysis.conversion import FullConversion, predict_full_conversion
from iobench.analysis.diagnosis import Diagnosis, Verdict, diagnose
from iobench.analysis.figures import (
    Coincidence,
    ComputeStage,
    Exposure,
    LongWaits,
    PartExposure,
    Phase,
    StageExposure,
    WaitStatistics,
)
from iobench.analysis.waits import wait_statistics
from iobench.analysis.windows import exposure

__all__ = [
    "Coincidence",
    "ComputeStage",
    "Diagnosis",
    "Exposure",
    "FullConversion",
    "LongWaits",
    "PartExposure",
    "Phase",
    "StageExposure",
    "Verdict",
    "WaitStatistics",
    "diagnose",
    "exposure",
    "predict_full_conversion",
    "wait_statistics",
]
