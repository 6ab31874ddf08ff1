"""What all readers of a store share: its extents, files, checksums, and how variables lie there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from iobench.files.atomic import is_local
from iobench.loaders.ring.checks import ExtentChecks
from iobench.loaders.ring.gather import MIN_RUN, ExtentGrid, find_grid
from iobench.stores.extents import ExtentStore

if TYPE_CHECKING:
    from iobench.files.open_files import FileSet
    from iobench.samples import SampleSpec
    from iobench.stores.contract import Store
    from iobench.stores.fields import FieldLayout


class StoreAccess:
    """A store as its readers use it."""

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
