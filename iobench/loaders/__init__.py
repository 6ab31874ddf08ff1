"""Loaders: pipelines of a dataset or store run ahead of a training loop, every stage recorded."""

from iobench.loaders.contract import Batch, Loader, PlannedBatch
from iobench.loaders.pipeline import Pipeline, Step, dataset_pipeline, store_pipeline

__all__ = [
    "Batch",
    "Loader",
    "Pipeline",
    "PlannedBatch",
    "Step",
    "dataset_pipeline",
    "store_pipeline",
]
