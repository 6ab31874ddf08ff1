"""iobench: where training on weather and climate data waits for its input, and what to do.

The names here are the public ones; they load on first use, so that importing iobench costs
nothing; so do modules such as ``iobench.torch``. ``iobench.datasets``, ``iobench.stores`` and
``iobench.testing`` are for authors of plugins and converters.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from iobench.analysis.run import exposure
    from iobench.errors import IobenchError
    from iobench.loaders.ring.factory import loader
    from iobench.recording.session import metric, record
    from iobench.recording.stages import stage
    from iobench.report.notebook import show
    from iobench.report.timeline.arrow_table import to_arrow
    from iobench.runs.contents import RunData
    from iobench.runs.reading import open_profile
    from iobench.samples import SampleSpec, Variable
    from iobench.sources.opened_dataset import open_dataset
    from iobench.stores.finished_store import open_store

__all__ = [
    "IobenchError",
    "RunData",
    "SampleSpec",
    "Variable",
    "exposure",
    "loader",
    "metric",
    "open_dataset",
    "open_profile",
    "open_store",
    "record",
    "show",
    "stage",
    "to_arrow",
]

_HOMES = {
    "IobenchError": "iobench.errors",
    "RunData": "iobench.runs.contents",
    "SampleSpec": "iobench.samples",
    "Variable": "iobench.samples",
    "exposure": "iobench.analysis.run",
    "open_dataset": "iobench.sources.opened_dataset",
    "loader": "iobench.loaders.ring.factory",
    "metric": "iobench.recording.session",
    "open_profile": "iobench.runs.reading",
    "open_store": "iobench.stores.finished_store",
    "record": "iobench.recording.session",
    "show": "iobench.report.notebook",
    "stage": "iobench.recording.stages",
    "to_arrow": "iobench.report.timeline.arrow_table",
}


_MODULES = frozenset(
    {"dali", "datasets", "jax", "stores", "tensorflow", "testing", "torch", "tracking"}
)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("importlib.metadata").version("iobench")
    if name in _MODULES:
        return import_module(f"iobench.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'iobench' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
