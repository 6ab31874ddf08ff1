"""iobench: where training on weather and climate data waits for its input, and what to do.

The names here are the public ones; they load on first use, so that importing iobench costs
nothing. ``iobench.datasets``, ``iobench.stores`` and ``iobench.testing`` are for authors of
plugins and converters.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from iobench.analysis import exposure
    from iobench.errors import IobenchError
    from iobench.loaders import loader
    from iobench.loaders.opening import open_store
    from iobench.profiles import Profile, open_profile
    from iobench.recording import record, stage
    from iobench.report.arrow_table import to_arrow
    from iobench.samples import SampleSpec, Variable
    from iobench.sources import open_dataset

__all__ = [
    "IobenchError",
    "Profile",
    "SampleSpec",
    "Variable",
    "exposure",
    "loader",
    "open_dataset",
    "open_profile",
    "open_store",
    "record",
    "stage",
    "to_arrow",
]

_HOMES = {
    "IobenchError": "iobench.errors",
    "Profile": "iobench.profiles",
    "SampleSpec": "iobench.samples",
    "Variable": "iobench.samples",
    "exposure": "iobench.analysis",
    "open_dataset": "iobench.sources",
    "loader": "iobench.loaders",
    "open_profile": "iobench.profiles",
    "open_store": "iobench.loaders.opening",
    "record": "iobench.recording",
    "stage": "iobench.recording",
    "to_arrow": "iobench.report.arrow_table",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'iobench' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
