"""The samples of a store, for a ring: read to where the batch wants them, or decoded there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from iobench.files.atomic import is_local
from iobench.loaders.ring.box_reader import SCRATCH_NBYTES, StoredBoxReader, find_arrays
from iobench.loaders.ring.decode_reader import DecodeReader
from iobench.loaders.ring.plain_reader import PlainReader
from iobench.loaders.ring.sample_patches import CutReader
from iobench.loaders.ring.store_access import StoreAccess

if TYPE_CHECKING:
    from iobench.loaders.ring.contract import BoxReader, Reader
    from iobench.loaders.ring.sample_patches import PatchSizes
    from iobench.samples import SampleSpec
    from iobench.stores.contract import Store

REMOTE_THREADS: Final = 4
"""That read a store elsewhere by default: they wait, whatever CPUs there are."""


class StoreSource:
    """The samples of a store; see `BatchSource`.

    Numbers that are stored as memory has them are read to their rows: from mappings where the page
    cache has them and they lie at equal distances, else with ``preadv``, after the system was asked
    for all of a batch. What is encoded is decoded to its rows.
    """

    def __init__(self, store: Store, verify: bool = False) -> None:
        self.store = store
        self.spec: SampleSpec = store.spec
        self._verify = verify
        self._access = StoreAccess(store, verify=verify)

    def __reduce__(self) -> tuple[type[StoreSource], tuple[Store, bool]]:
        return StoreSource, (self.store, self._verify)

    def __len__(self) -> int:
        return len(self.store)

    @property
    def is_remote(self) -> bool:
        """Whether it is elsewhere."""
        return not is_local(self.store.path)

    def filler(self) -> Reader:
        """Return a reader for one more thread."""
        return (
            DecodeReader(self._access) if self._access.layout is None else PlainReader(self._access)
        )

    def box_filler(self, sizes: PatchSizes) -> BoxReader:
        """Return a reader of boxes for one more thread."""
        whole = CutReader(self.filler(), self.spec, sizes, SCRATCH_NBYTES)
        arrays = find_arrays(self._access, sizes)
        return whole if arrays is None else StoredBoxReader(self._access, sizes, arrays, whole)
