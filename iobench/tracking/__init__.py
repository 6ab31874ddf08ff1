"""Runs kept where users keep experiments: MLflow and Weights & Biases."""

from iobench.tracking.telling import log_run

__all__ = ["log_run"]
