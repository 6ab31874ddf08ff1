"""Loaders: pipelines of a dataset or store run ahead of a training loop, every stage recorded."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
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

# On first use: a script's own loaders, when they are recorded, need two small modules of these.
_HOMES: Final = {
    "Batch": "contract",
    "Loader": "contract",
    "Pipeline": "pipeline",
    "PlannedBatch": "contract",
    "RingLoader": "ring",
    "StackReader": "ring.stacking",
    "Step": "pipeline",
    "dataset_pipeline": "pipeline",
    "loader": "ring.options",
    "store_pipeline": "pipeline",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"iobench.loaders.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
