"""Batches filled from a store: its extents read to where the batch wants them."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Final, Literal

from iobench.errors import OptionError
from iobench.files.atomic import is_local
from iobench.loaders.ring.checks import ExtentChecks
from iobench.loaders.ring.decode_filler import (
    AnyExtents,
    DecodeFiller,
    LocalExtents,
    ObjectExtents,
)
from iobench.loaders.ring.direct import DirectChoice, choose_direct
from iobench.loaders.ring.in_place_filler import (
    InPlaceFiller,
    LocalReads,
    ReadSet,
    StoreFiles,
)
from iobench.loaders.ring.object_reads import ObjectReads
from iobench.loaders.ring.range_plan import CALL_NBYTES, REQUEST_NBYTES, plan_of
from iobench.loaders.ring.reads import SampleRanges
from iobench.stores.extents import ExtentStore

if TYPE_CHECKING:
    from types import TracebackType

    from iobench.files.open_files import FileSet
    from iobench.loaders.ring.contract import Filler
    from iobench.loaders.ring.direct import AlignedReader
    from iobench.loaders.ring.in_place_filler import ChoosesReads
    from iobench.loaders.ring.read_choice import ReadChoice
    from iobench.samples import SampleSpec
    from iobench.stores.contract import Store
    from iobench.stores.fields import FieldLayout

IN_FLIGHT: Final = 16
"""Requests of a thread, where nothing was measured."""


class StoreSource:
    """The samples of a store, for a ring; see `BatchSource`."""

    def __init__(
        self,
        store: Store,
        *,
        verify: bool = False,
        direct: bool | Literal["auto"] = False,
    ) -> None:
        if direct not in (True, False, "auto"):
            raise OptionError(f'direct={direct!r}: expected True, False or "auto"')
        self.store = store
        self.spec: SampleSpec = store.spec
        self.verify = verify
        self.checks = ExtentChecks(store) if verify else None
        self.choice: ReadChoice | None = None
        self._files = None
        if isinstance(store, ExtentStore) and is_local(store.path):
            self._files = StoreFiles(store)
        layout = store.fields() if isinstance(store, ExtentStore) else None
        self._layout = layout
        self.fields = None if layout is None or layout.varints else layout
        if direct is True and (self._files is None):
            raise OptionError(f"direct=True: {store.path} cannot be read around the page cache")
        self._wanted_direct = direct
        can_direct = self._files is not None
        self.direct: bool | Literal["auto"] = direct if can_direct else False
        self.direct_choice = DirectChoice(True, {}) if direct is True else None
        self.in_flight = IN_FLIGHT
        self._lock = ForkLock()

    def __reduce__(self) -> tuple[object, tuple[Store, bool, bool | str]]:
        return _made, (self.store, self.verify, self._wanted_direct)

    def __len__(self) -> int:
        return len(self.store)

    def filler(self) -> Filler:
        """Return a filler for one more thread."""
        store = self.store
        if not isinstance(store, ExtentStore):
            return self._others()
        fields = self.fields if self._files is None else self._layout
        if fields is not None:
            return self._in_place(store, fields)
        decoder = store.row_decoder
        if self._files is None:
            objects = ObjectExtents(store, self._n_in_flight)
            return DecodeFiller(store, objects, self.checks, decoder)
        if decoder is None:
            return self._others()
        extents = LocalExtents(
            store,
            self._files.files,
            is_mapped=self._files.are_few,
            aligned=self._files.aligned() if self.direct else None,
            is_direct=self.is_direct,
        )
        return DecodeFiller(store, extents, self.checks, decoder)

    def _in_place(self, store: ExtentStore, fields: FieldLayout) -> InPlaceFiller:
        ways: ChoosesReads
        call_nbytes = REQUEST_NBYTES if self._files is None else CALL_NBYTES
        plan = plan_of(fields, call_nbytes, keeps_all=self.verify)
        if self._files is None:
            reads = ObjectReads(SampleRanges(store.table, plan.ranges), self._n_in_flight)
            ways = ReadSet([reads], plan.around_nbytes)
        else:
            ways = LocalReads(self, fields, self._files, plan)
        files = None if self._files is None else self._files.files
        return InPlaceFiller(store, fields, ways, self._others(), checks=self.checks, files=files)

    def _others(self) -> DecodeFiller:
        """Return what has the store decode samples."""
        return DecodeFiller(self.store, AnyExtents(self.store), self.checks)

    def _n_in_flight(self) -> int:
        return self.in_flight

    def is_direct(self, files: FileSet, reader: AlignedReader) -> bool:
        """Return whether what is not cached is read around the page cache; measured once."""
        with self._lock:
            if self.direct_choice is None and self._files is not None:
                self.direct_choice = choose_direct(self._files.table, files, reader)
            return self.direct_choice is not None and self.direct_choice.is_direct

    def chosen(self, reads: LocalReads) -> ReadChoice:
        """Return how extents are to be read; measured where that is not known."""
        with self._lock:
            if self.choice is None or not self.choice.is_final:
                self.choice = reads.measured()
            return self.choice


def _made(store: Store, verify: bool, direct: bool | Literal["auto"]) -> StoreSource:
    return StoreSource(store, verify=verify, direct=direct)


class ForkLock:
    """A mutex for what a forked child uses again: reader threads may hold it as the loop forks.

    Those threads are not in the child, and would never let it go there. What it guards must be
    whole at every instant: a value that is there or not.
    """

    __slots__ = ("_lock", "_pid")

    def __init__(self) -> None:
        self._lock, self._pid = threading.Lock(), os.getpid()

    def __enter__(self) -> None:
        if self._pid != os.getpid():
            # A forked child begins with one thread, so nobody else is here.
            self._lock, self._pid = threading.Lock(), os.getpid()
        self._lock.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._lock.release()
