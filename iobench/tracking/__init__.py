"""Runs kept where users keep experiments: MLflow and Weights & Biases."""

from iobench.tracking.live_tracking import LiveTracking, live
from iobench.tracking.telling import log_run

__all__ = ["LiveTracking", "live", "log_run"]
