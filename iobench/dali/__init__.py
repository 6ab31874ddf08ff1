"""For NVIDIA DALI: its readers over a store, and pipelines and iterators of a script, timed.

DALI tells nobody what its operators do when (its statistics are of memory): a pipeline is one
``opaque`` stage here, and the wait for it exact.
"""

from __future__ import annotations

import importlib

from iobench.errors import MissingExtraError

try:
    importlib.import_module("nvidia.dali")
except ModuleNotFoundError as error:
    if error.name not in ("nvidia", "nvidia.dali"):
        raise
    raise MissingExtraError("this needs NVIDIA DALI", extra="dali") from None

from iobench.dali.instrument import instrument
from iobench.dali.store_pipelines import DaliLoader

__all__ = ["DaliLoader", "instrument"]
