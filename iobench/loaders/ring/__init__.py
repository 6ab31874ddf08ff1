"""The ring: batches filled by threads into buffers that are used again, at the speed of memory."""

from iobench.loaders.ring.buffers import BatchMemory, BufferPool
from iobench.loaders.ring.contract import BatchSource, DevicePath, Filler, Present, RingBatch, Rows
from iobench.loaders.ring.loader import DEPTH, RingLoader
from iobench.loaders.ring.log import BatchLog
from iobench.loaders.ring.order import BatchOrder, Permutation
from iobench.loaders.ring.passes import RingPass
from iobench.loaders.ring.pipeline_source import PipelineSource
from iobench.loaders.ring.presenting import ArrayCast, Presenter, map_leaves
from iobench.loaders.ring.process_source import ProcessSource
from iobench.loaders.ring.run import RingRun
from iobench.loaders.ring.store_source import StoreSource
from iobench.loaders.ring.window_source import WindowSource

__all__ = [
    "DEPTH",
    "ArrayCast",
    "BatchLog",
    "BatchMemory",
    "BatchOrder",
    "BatchSource",
    "BufferPool",
    "DevicePath",
    "Filler",
    "Permutation",
    "PipelineSource",
    "Present",
    "Presenter",
    "ProcessSource",
    "RingBatch",
    "RingLoader",
    "RingPass",
    "RingRun",
    "Rows",
    "StoreSource",
    "WindowSource",
    "map_leaves",
]
