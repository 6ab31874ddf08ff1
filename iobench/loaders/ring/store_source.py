"""Batches filled from a store: its extents read to where the batch wants them."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from iobench.loaders.ring.checks import ExtentChecks
from iobench.loaders.ring.decoded import DecodedFiller, ExtentFiller
from iobench.loaders.ring.field_filler import FieldFiller, StoreFiles
from iobench.stores import ExtentStore

if TYPE_CHECKING:
    from iobench.loaders.ring.contract import Filler
    from iobench.loaders.ring.probe_reads import ReadChoice
    from iobench.samples import SampleSpec
    from iobench.stores import Store

__all__ = ["StoreSource"]


class StoreSource:
    """The samples of a store, for a ring; see `iobench.loaders.ring.BatchSource`.

    Parameters
    ----------
    store : Store
        An open store of any format.
    verify : bool
        Whether each extent is compared with its checksum.

    Attributes
    ----------
    spec : SampleSpec
        What a sample is.
    fields : FieldLayout or None
        Where variables lie in the store's extents; None where each sample has to be decoded.
    choice : ReadChoice or None
        How extents are read, and the figures that decided it: known from the first filler on.

    Raises
    ------
    StoreError
        If there are no checksums to verify.
    """

    def __init__(self, store: Store, *, verify: bool = False) -> None:
        self.store = store
        self.spec: SampleSpec = store.spec
        self.verify = verify
        self.checks = ExtentChecks(store) if verify else None
        self.choice: ReadChoice | None = None
        is_local = hasattr(store.path, "__fspath__")
        self._files = StoreFiles(store) if is_local and isinstance(store, ExtentStore) else None
        self.fields = store.fields() if isinstance(store, ExtentStore) and is_local else None
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self.store)

    def filler(self) -> Filler:
        """Return a filler for one more thread."""
        store = self.store
        if self._files is None or not isinstance(store, ExtentStore):
            return DecodedFiller(store, self.checks)
        if self.fields is not None:
            return FieldFiller(self, store, self.fields, self._files)
        decoder = store.row_decoder
        if decoder is None:
            return DecodedFiller(store, self.checks)
        return ExtentFiller(store, decoder, self._files.opened(), self.checks)

    def chosen(self, filler: FieldFiller) -> ReadChoice:
        """Return how extents are to be read; measured with a filler where that is not known."""
        with self._lock:
            if self.choice is None or not self.choice.is_final:
                self.choice = filler.measured()
            return self.choice
