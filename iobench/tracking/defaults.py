"""Settings of a library that hold where the user's environment says nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

__all__ = ["with_defaults"]


@contextmanager
def with_defaults(defaults: Mapping[str, str]) -> Iterator[None]:
    """Add to the environment what it does not have, and take that away again."""
    added = {name: value for name, value in defaults.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)
