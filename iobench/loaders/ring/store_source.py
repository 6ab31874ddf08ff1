"""Batches filled from a store: its extents read to where the batch wants them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, Literal

from iobench.errors import OptionError
from iobench.loaders.ring.carriers import FileCarrier, ObjectCarrier
from iobench.loaders.ring.checks import ExtentChecks
from iobench.loaders.ring.decoded import DecodedFiller, ExtentFiller
from iobench.loaders.ring.direct import DirectChoice, choose_direct
from iobench.loaders.ring.field_filler import FieldFiller, StoreFiles
from iobench.loaders.ring.fork_lock import ForkLock
from iobench.loaders.ring.object_filler import ObjectFiller
from iobench.loaders.ring.stretch_filler import StretchFiller
from iobench.loaders.ring.stretches import REQUEST_NBYTES, plan_of
from iobench.stores.extents import ExtentStore

if TYPE_CHECKING:
    from iobench.files.open_files import FileSet
    from iobench.loaders.ring.carriers import Carrier
    from iobench.loaders.ring.contract import Filler
    from iobench.loaders.ring.direct import AlignedReader
    from iobench.loaders.ring.probe_reads import ReadChoice
    from iobench.samples import SampleSpec
    from iobench.stores.contract import Store

__all__ = ["StoreSource"]

IN_FLIGHT: Final = 16
"""Requests of a thread, where nothing was measured."""


class StoreSource:
    """The samples of a store, for a ring; see `BatchSource`.

    Parameters
    ----------
    store : Store
        An open store of any format.
    verify : bool
        Whether each extent is compared with its checksum.
    direct : bool or "auto"
        Whether what is not in the page cache is read around it (``O_DIRECT``), which a store larger
        than memory would only turn over; ``"auto"``: where that is faster, measured when it is
        first needed.
    note : str
        What else is to be told of how it is read.

    Attributes
    ----------
    spec : SampleSpec
        What a sample is.
    fields : FieldLayout or None
        Where variables lie in the store's extents; None where each sample has to be decoded.
    choice : ReadChoice or None
        How extents are read, and the figures that decided it: known from the first batch on.
    direct_choice : DirectChoice or None
        The same for ``direct``: known once something was not in the page cache.
    in_flight : int
        Requests that each thread may have under way at once, where the store is remote.

    Raises
    ------
    StoreError
        If there are no checksums to verify.
    OptionError
        If ``direct`` is asked for where there is no such thing: for remote stores.
    """

    def __init__(
        self,
        store: Store,
        *,
        verify: bool = False,
        direct: bool | Literal["auto"] = False,
        note: str = "",
    ) -> None:
        if direct not in (True, False, "auto"):
            raise OptionError(f'direct={direct!r}: expected True, False or "auto"')
        self.store = store
        self.spec: SampleSpec = store.spec
        self.verify = verify
        self.checks = ExtentChecks(store) if verify else None
        self.choice: ReadChoice | None = None
        is_local = hasattr(store.path, "__fspath__")
        self._files = StoreFiles(store) if is_local and isinstance(store, ExtentStore) else None
        layout = store.fields() if isinstance(store, ExtentStore) else None
        self._layout = layout
        self.fields = None if layout is None or layout.varints else layout
        if direct is True and (self._files is None or not hasattr(os, "O_DIRECT")):
            raise OptionError(f"direct=True: {store.path} cannot be read around the page cache")
        self._wanted_direct = direct
        can_direct = self._files is not None and hasattr(os, "O_DIRECT")
        self.direct: bool | Literal["auto"] = direct if can_direct else False
        self.direct_choice = DirectChoice(True, {}) if direct is True else None
        self.note = note
        self.in_flight = IN_FLIGHT
        self._lock = ForkLock()

    def __reduce__(self) -> tuple[object, tuple[Store, bool, bool | str, str]]:
        return _made, (self.store, self.verify, self._wanted_direct, self.note)

    def __len__(self) -> int:
        return len(self.store)

    def filler(self) -> Filler:
        """Return a filler for one more thread."""
        store = self.store
        if not isinstance(store, ExtentStore):
            return DecodedFiller(store, self.checks)
        if self._files is None:
            return self._remote_filler(store)
        if self._layout is not None:
            return FieldFiller(self, store, self._layout, self._files)
        decoder = store.row_decoder
        if decoder is None:
            return DecodedFiller(store, self.checks)
        aligned = self._files.aligned() if self.direct else None
        return ExtentFiller(
            store,
            decoder,
            self._files.files,
            self.checks,
            self._files.are_few,
            aligned,
            self.is_direct,
        )

    def _remote_filler(self, store: ExtentStore) -> Filler:
        fields = self.fields
        if fields is None:
            return ObjectFiller(store, self.carrier(), self.checks)
        plan = plan_of(
            fields, store.manifest.spec, {}, REQUEST_NBYTES, keeps_all=self.checks is not None
        )
        assert plan is not None  # nothing is cut
        return StretchFiller(store, fields, plan, self.carrier(), checks=self.checks)

    def carrier(self) -> Carrier:
        """Return what brings stretches of the store's files, for one more thread."""
        store = self.store
        assert isinstance(store, ExtentStore)
        if self._files is None:
            return ObjectCarrier(store.table.files, lambda: self.in_flight)
        aligned = self._files.aligned() if self.direct else None
        return FileCarrier(self._files.files, aligned, self.is_direct)

    def is_direct(self, files: FileSet, reader: AlignedReader) -> bool:
        """Return whether what is not cached is read around the page cache; measured once."""
        with self._lock:
            if self.direct_choice is None and self._files is not None:
                self.direct_choice = choose_direct(self._files.table, files, reader)
            return self.direct_choice is not None and self.direct_choice.is_direct

    def chosen(self, filler: FieldFiller) -> ReadChoice:
        """Return how extents are to be read; measured with a filler where that is not known."""
        with self._lock:
            if self.choice is None or not self.choice.is_final:
                self.choice = filler.measured()
            return self.choice


def _made(store: Store, verify: bool, direct: bool | Literal["auto"], note: str) -> StoreSource:
    return StoreSource(store, verify=verify, direct=direct, note=note)
