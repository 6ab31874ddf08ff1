"""What a source decided by itself, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from iobench.loaders.ring.patch_reads import StorePatches
from iobench.loaders.ring.pipeline_source import PipelineSource
from iobench.loaders.ring.process_source import ProcessSource
from iobench.loaders.ring.store_source import StoreSource
from iobench.loaders.ring.wrapped_source import WrappedSource

if TYPE_CHECKING:
    from iobench.loaders.ring.contract import BatchSource


def beneath(source: BatchSource) -> BatchSource | None:
    """Return the source whose samples another one is made of; None where there is none."""
    if isinstance(source, (WrappedSource, ProcessSource)):
        return source.source
    return None


def innermost(source: BatchSource) -> BatchSource:
    """Return the source whose samples all the others around it are made of."""
    while (inner := beneath(source)) is not None:
        source = inner
    return source


def told(source: BatchSource) -> list[str]:
    """Return how a source reads, and those that it is made of."""
    lines = []
    at: BatchSource | None = source
    while at is not None:
        if isinstance(at, PipelineSource) and at.note:
            lines.append(at.note)
        if isinstance(at, StoreSource):
            lines += [str(at.choice)] if at.choice is not None else []
        elif isinstance(at, WrappedSource) and at.choice:
            lines.append(at.choice)
        at = None if isinstance(at, StorePatches) else beneath(at)
    return lines
