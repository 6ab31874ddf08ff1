"""Profiles to figures: pure functions of recorded spans, numpy and the standard library only."""

from iobench.analysis.diagnosis import Advice, Diagnosis, Evidence, diagnose
from iobench.analysis.figures import (
    Coincidence,
    ComputeStage,
    Exposure,
    LongWaits,
    Phase,
    StageExposure,
    WaitStatistics,
    Window,
)
from iobench.analysis.waits import wait_statistics
from iobench.analysis.windows import exposure

__all__ = [
    "Advice",
    "Coincidence",
    "ComputeStage",
    "Diagnosis",
    "Evidence",
    "Exposure",
    "LongWaits",
    "Phase",
    "StageExposure",
    "WaitStatistics",
    "Window",
    "diagnose",
    "exposure",
    "wait_statistics",
]
