"""The store that a loader reads from a copy near the CPUs, and what becomes of the copy."""

from __future__ import annotations

import logging
import os
import threading
import weakref
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from iobench.datasets.splits import select_split
from iobench.errors import IobenchError, OptionError, StorageError, StoreClaimedError
from iobench.files.atomic import is_local
from iobench.staging.listing import part_of
from iobench.staging.local_disk import choose_local_disk
from iobench.staging.stage import stage_held
from iobench.staging.staged_copy import remove_staged
from iobench.storage.file_systems import file_system_of
from iobench.stores.extents import ExtentStore
from iobench.stores.finished_store import open_store
from iobench.stores.places import hold_item

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from iobench.staging.listing import Part
    from iobench.staging.staged_copy import StagedCopy
    from iobench.stores.contract import Store

logger = logging.getLogger("iobench")
TRY_AGAIN_S: Final = 0.5


class LoaderCopy:
    """A copy that a loader reads, held until it is closed; then removed if the loader chose it.

    Parameters
    ----------
    place : Path
        Below which folder it is.
    why : str
        Why there; ``""`` where the user said it, and it stays.

    Attributes
    ----------
    shuffles : bool
        Whether the loader does, within its part.
    told : str
        What was done, in words.
    part : Part or None
        Of several nodes, which.
    part_sizes : sequence of int
        Samples that the loader takes of each node's part.
    """

    def __init__(
        self, place: Path, why: str, part: Part | None, part_sizes: Sequence[int] = ()
    ) -> None:
        self.place, self.why, self.part, self.part_sizes = place, why, part, part_sizes
        self.shuffles, self.told = False, ""
        self.copy: StagedCopy | None = None
        self._state: dict[str, Any] = {"hold": None, "thread": None}
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._finalizer = weakref.finalize(
            self, _end, self._state, self._stopped, place if why else None, os.getpid()
        )

    def make(self, source: Path) -> None:
        """Make the copy, or wait for who does."""
        copy, self._state["hold"] = stage_held(
            source, self.place, part=self.part, notice=logger.warning
        )
        self._tell(copy)

    def _tell(self, copy: StagedCopy) -> None:
        self.copy = copy
        done = "was there" if copy.was_there else f"copied {copy.copied_nbytes} bytes"
        parts = [
            f"staged to {copy.path}, {done}",
            self.why,
            copy.shuffling if self.shuffles else "",
        ]
        self.told = "; ".join(filter(None, parts))

    def make_beside(self, store: ExtentStore) -> None:
        """Make it while the store itself is read; a file is read from its copy once that is whole.

        Whatever goes wrong with the copy: the store goes on being read where it is.
        """
        numbers = {path: number for number, path in enumerate(store.table.files)}
        files, place, stopped, state = store.files, self.place, self._stopped, self._state
        mine = weakref.ref(self)  # who forgets the loader ends the copying

        def arrived(name: str, path: Path) -> None:
            number = numbers.get(store.path / name)
            if state["hold"] is None:
                folder = Path(str(path).removesuffix(f"/{name}"))
                state["hold"] = hold_item(folder)
            if number is not None and state["hold"] is not None and not stopped.is_set():
                files.read_from(number, path)

        def moved(done: int, total: int) -> None:
            if stopped.is_set():
                raise _StoppedError

        def work() -> None:
            while not stopped.is_set():
                try:
                    copy, held = stage_held(
                        store.path, place, progress=moved, arrived=arrived, wait_s=0.0
                    )
                except StoreClaimedError:  # another rank copies
                    stopped.wait(TRY_AGAIN_S)
                    continue
                except _StoppedError:
                    return
                except IobenchError as error:
                    logger.warning("%s; what is not copied is read where it is", error)
                    return
                if state["hold"] is not None:
                    state["hold"].release()
                state["hold"] = held
                if (made := mine()) is not None:
                    made._tell(copy)
                return

        self.told = f"is staged to {place} while it is read; {self.why}"
        self._thread = state["thread"] = threading.Thread(
            target=work, name="iobench-staging", daemon=True
        )
        self._thread.start()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it is made; return whether it is."""
        if self._thread is not None:
            self._thread.join(timeout_s)
        return self.copy is not None

    def close(self) -> None:
        """Let go of it; remove it if the loader chose the place and nobody else uses it."""
        self._finalizer()


class _StoppedError(Exception):
    """Nobody wants the copy any more."""


def _end(state: dict[str, Any], stopped: threading.Event, place: Path | None, pid: int) -> None:
    """End a copy; no method, so that it is called where nobody has it any more."""
    if os.getpid() != pid:
        return
    stopped.set()
    thread = state["thread"]
    if thread is not None and thread is not threading.current_thread():
        thread.join()
    if state["hold"] is not None:
        state["hold"].release()
    if place is None:
        return
    with suppress(OSError, IobenchError):
        for folder in place.iterdir():
            remove_staged(folder)
        place.rmdir()
        place.parent.rmdir()


def staged_for(store: Any, options: Mapping[str, Any]) -> tuple[Any, LoaderCopy | None]:
    """Return what a loader is to open in place of a store, and the copy that is made of it.

    Parameters
    ----------
    options : mapping
        As of `iobench.loader`: ``stage``, ``stage_part``, ``stage_background``.

    Raises
    ------
    OptionError
        If an option cannot be met.
    StorageError
        If no copy can be made, but for ``"auto"``, which reads the store where it is.
    """
    wanted = options.get("stage")
    part_wanted, background = options.get("stage_part"), options.get("stage_background")
    if wanted is None or wanted is False:
        if part_wanted is not None or background:
            raise OptionError('stage_part and stage_background go with stage="auto"')
        return store, None
    if isinstance(store, (str, os.PathLike)):
        store = open_store(os.fspath(store))
    if not isinstance(store, ExtentStore):
        raise OptionError(f"stage={wanted!r}: is for stores that 'iobench convert' made")
    part = _part(part_wanted, store)
    if background and (part is not None or not is_local(store.path)):
        raise OptionError(
            "stage_background=True: is for all of a store that is read as files; leave stage_part "
            "out, or stage before the first epoch"
        )
    place = _place(store, wanted, part)
    if isinstance(place, str):
        logger.warning("%s: %s", store.path, place)
        return store, None
    sizes = () if part is None else _part_sizes(store, part, options)
    made = LoaderCopy(*place, part, sizes)
    made.shuffles = bool(options.get("shuffle"))
    try:
        if background:
            made.make_beside(store)
            logger.warning("%s: %s", store.path, made.told)
            return store, made
        made.make(store.path)
        logger.warning("%s: %s", store.path, made.told)
        assert made.copy is not None
        return made.copy.path, made
    except BaseException:
        made.close()
        raise


def _part_sizes(store: Store, part: Part, options: Mapping[str, Any]) -> Sequence[int]:
    """Return how many samples each node takes, since all are to take as many batches."""
    if options.get("window") is not None:
        raise OptionError(
            "stage_part: a part has every n-th shard, over which no window goes; stage all of the "
            "store, or leave window out"
        )
    split = options.get("split")
    taken = (
        np.arange(len(store)) if split is None else np.asarray(select_split(store.index(), split))
    )
    ends = np.cumsum([shard.n_samples for shard in store.manifest.shards])
    shards = np.searchsorted(ends, taken, side="right")
    sizes: list[int] = np.bincount(shards % part[1], minlength=part[1]).tolist()
    if not min(sizes):
        raise OptionError(f"stage_part: part {sizes.index(0) + 1} of {part[1]} has no sample")
    return sizes


def _place(store: ExtentStore, wanted: Any, part: Part | None) -> tuple[Path, str] | str:
    """Return where the copy goes, or why there is none."""
    if wanted not in ("auto", "node", True):
        return Path(wanted), ""
    on = file_system_of(store.path)
    if wanted == "auto" and part is None and on.reach in ("local", "memory"):
        return f"is read where it is: {on.name} is a disk of this node, or memory"
    nbytes = store.manifest.nbytes // (part[1] if part is not None else 1)
    try:
        return choose_local_disk(f"{store.path} {part or ''}".strip(), nbytes)
    except StorageError as error:
        if wanted == "auto" and part is None:
            return f"is read where it is: {error}"
        raise


def _part(wanted: Any, store: Store) -> Part | None:
    if wanted is None:
        return None
    if wanted == "node":
        return part_of(wanted)
    try:
        number, count = map(int, wanted)
    except (TypeError, ValueError):
        raise OptionError(f'stage_part={wanted!r}: expected "node" or (k, n)') from None
    if not 1 <= number <= count:
        raise OptionError(f"stage_part={wanted!r}: expected 1 <= k <= n")
    return number, count
