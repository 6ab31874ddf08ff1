"""The samples of a store, for a ring: read to where the batch wants them, or decoded there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from iobench.files.atomic import is_local
from iobench.loaders.pipeline import store_pipeline
from iobench.loaders.ring.box_reader import SCRATCH_NBYTES, StoredBoxReader, find_arrays
from iobench.loaders.ring.decode_reader import DecodeReader
from iobench.loaders.ring.pipeline_source import PipelineSource
from iobench.loaders.ring.plain_reader import PlainReader
from iobench.loaders.ring.sample_patches import CutReader
from iobench.loaders.ring.store_access import StoreAccess
from iobench.stores.chunked_store import ChunkedStore

if TYPE_CHECKING:
    from iobench.loaders.ring.contract import BoxReader, Reader
    from iobench.loaders.ring.sample_patches import PatchSizes
    from iobench.stores.contract import Store

REMOTE_THREADS: Final = 4
"""That read a store elsewhere by default: they wait, whatever CPUs there are."""


def source_of_store(store: Store, verify: bool = False) -> StoreSource | PipelineSource:
    """Return the samples of a store: by extents, or by the chunks that several of them share."""
    if not isinstance(store, ChunkedStore):
        return StoreSource(store, verify)
    source = PipelineSource(store_pipeline(store, verify=verify))
    source.is_remote = not is_local(store.path)
    return source


class StoreSource(StoreAccess):
    """The samples of a store; see `BatchSource`.

    Numbers as memory has them are read to their rows: from mappings where the page cache has them
    and they lie at equal distances, else with ``preadv``. What is encoded is decoded there.
    """

    def __reduce__(self) -> tuple[type[StoreSource], tuple[Store, bool]]:
        return StoreSource, (self.store, self.checks is not None)

    def filler(self) -> Reader:
        """Return a reader for one more thread."""
        return DecodeReader(self) if self.layout is None else PlainReader(self)

    def box_filler(self, sizes: PatchSizes) -> BoxReader:
        """Return a reader of boxes for one more thread."""
        whole = CutReader(self.filler(), self.spec, sizes, SCRATCH_NBYTES)
        arrays = find_arrays(self, sizes)
        return whole if arrays is None else StoredBoxReader(self, sizes, arrays, whole)
