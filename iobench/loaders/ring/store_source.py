"""The samples of a store, for a ring: read to where the batch wants them, or decoded there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from iobench.files.atomic import is_local
from iobench.loaders.pipeline import store_pipeline
from iobench.loaders.ring.box_reader import SCRATCH_NBYTES, StoredBoxReader, find_arrays
from iobench.loaders.ring.checks import ExtentChecks
from iobench.loaders.ring.decode_reader import DecodeReader
from iobench.loaders.ring.gather import MIN_RUN, ExtentGrid, find_grid
from iobench.loaders.ring.pipeline_source import PipelineSource
from iobench.loaders.ring.plain_reader import PlainReader
from iobench.loaders.ring.sample_patches import CutReader
from iobench.stores.chunked_store import ChunkedStore
from iobench.stores.extents import ExtentStore

if TYPE_CHECKING:
    from iobench.files.open_files import FileSet
    from iobench.loaders.ring.contract import BoxReader, Reader
    from iobench.loaders.ring.sample_patches import PatchSizes
    from iobench.samples import SampleSpec
    from iobench.stores.contract import Store
    from iobench.stores.fields import FieldLayout

REMOTE_THREADS: Final = 4
"""That read a store elsewhere by default: they wait, whatever CPUs there are."""


def source_of_store(store: Store, verify: bool = False) -> StoreSource | PipelineSource:
    """Return the samples of a store: by extents, or by the chunks that several of them share."""
    if not isinstance(store, ChunkedStore):
        return StoreSource(store, verify)
    source = PipelineSource(store_pipeline(store, verify=verify))
    source.is_remote = not is_local(store.path)
    return source


class StoreSource:
    """The samples of a store; see `BatchSource`.

    Numbers as memory has them are read to their rows: from mappings where the page cache has them
    and they lie at equal distances, else with ``preadv``. What is encoded is decoded there.
    """

    def __init__(self, store: Store, verify: bool = False) -> None:
        self.store = store
        self.spec: SampleSpec = store.spec
        self.checks = ExtentChecks(store) if verify else None
        self.is_remote = not is_local(store.path)
        self.files: FileSet | None = None  # of a local store
        self.layout: FieldLayout | None = None  # None where samples have to be decoded
        if isinstance(store, ExtentStore):
            self.files = None if self.is_remote else store.files
            self.layout = store.fields()
            if self.layout is not None and self.layout.varints and self.files is None:
                self.layout = None
        self._grids: list[ExtentGrid | None] | None = None

    def __reduce__(self) -> tuple[type[StoreSource], tuple[Store, bool]]:
        return StoreSource, (self.store, self.checks is not None)

    def __len__(self) -> int:
        return len(self.store)

    @property
    def can_be_mapped(self) -> bool:
        """Whether mapping all files gains more than it costs: there are few of them."""
        store = self.store
        if not isinstance(store, ExtentStore) or self.files is None:
            return False
        return len(store.table.files) * MIN_RUN <= store.table.file.size

    def grids(self) -> list[ExtentGrid | None]:
        """Return how the extents of each number lie; the first call looks at all of them."""
        if self._grids is None:
            store, layout = self.store, self.layout
            assert isinstance(store, ExtentStore)
            assert layout is not None
            of_file = store.file_sizes
            sizes = [of_file[path] for path in store.table.files]
            self._grids = [
                find_grid(store.table, number, length, sizes)
                for number, length in enumerate(layout.lengths)
            ]
        return self._grids

    def filler(self) -> Reader:
        """Return a reader for one more thread."""
        return DecodeReader(self) if self.layout is None else PlainReader(self)

    def box_filler(self, sizes: PatchSizes) -> BoxReader:
        """Return a reader of boxes for one more thread."""
        whole = CutReader(self.filler(), self.spec, sizes, SCRATCH_NBYTES)
        arrays = find_arrays(self, sizes)
        return whole if arrays is None else StoredBoxReader(self, sizes, arrays, whole)
