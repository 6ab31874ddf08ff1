"""Loaders: pipelines of a dataset or store run ahead of a training loop, every stage recorded."""

from iobench.loaders.contract import Batch, Loader, PlannedBatch
from iobench.loaders.pipeline import Pipeline, Step, dataset_pipeline, store_pipeline
from iobench.loaders.ring import RingLoader
from iobench.loaders.ring.options import loader
from iobench.loaders.ring.stacking import StackReader

__all__ = [
    "Batch",
    "Loader",
    "Pipeline",
    "PlannedBatch",
    "RingLoader",
    "StackReader",
    "Step",
    "dataset_pipeline",
    "loader",
    "store_pipeline",
]
