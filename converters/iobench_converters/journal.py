"""What an unfinished store is: its plan, and which of its shards are finished.

All of it lies in ``iobench.journal`` in the store's folder and goes when the store is finished::

    plan               digest of the plan, when its sources were modified
    shard-00003.json   a finished shard: its files and checksums
    part-1/            files of shards that part 1 of the work is writing
    part-1.lock        who writes part 1, where there are several
"""

from __future__ import annotations

import secrets
from array import array
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from iobench.errors import StoreError
from iobench.stores import (
    JOURNAL_NAME,
    N_MOMENTS,
    ConversionPlan,
    Shard,
    ShardInfo,
    canonical_json,
    is_local,
    modified_ns,
    read_json,
    remove_leftovers,
    remove_tree,
    storage_errors,
    write_atomically,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

PLAN_NAME = "plan"


class PlanMark(msgspec.Struct, frozen=True):
    """What the file ``plan`` says of the conversion that was begun."""

    digest: str
    title: str  # of its plan
    n_parts: int  # processes that share the shards
    # when each source file was modified last. Not part of the plan: a copy of the sources gives the
    # same store, but shards of one store are of the same state of them
    modified_ns: list[int]
    # of variables stored as int16, as found by a pass over the samples
    ranges: dict[str, tuple[float, float]]


class _ShardEntry(msgspec.Struct, frozen=True):
    """What is noted of a finished shard."""

    shard: Shard
    modified_ns: list[int]  # of its files
    crc32c: bytes
    statistics: dict[str, bytes]


class Journal:
    """The journal of a store that is being written."""

    def __init__(self, path: Path, plan: ConversionPlan) -> None:
        self.store, self._plan = path, plan
        self.folder = path / JOURNAL_NAME
        number, self._n_parts = plan.request.part
        self._work = self.folder / f"part-{number}"

    def mark(self) -> PlanMark | None:
        """Return what was begun, None if nothing was; check that it is what we are to write."""
        file = self.folder / PLAN_NAME
        try:
            with storage_errors(self.folder):
                mark = msgspec.convert(read_json(file), PlanMark)
        except FileNotFoundError:
            return None
        except (ValueError, msgspec.ValidationError) as error:
            raise StoreError(
                f"{file}: no plan of this version ({error}); remove {self.store} and run the same "
                "command again"
            ) from error
        if mark.digest != self._plan.digest:
            raise StoreError(
                f"{self.store} holds an unfinished store of something else (source files, samples "
                f"or options differ): {mark.title}; remove it or choose another folder"
            )
        if mark.n_parts != self._n_parts:
            raise StoreError(
                f"{self.store} was begun in {mark.n_parts} parts, not {self._n_parts}: continue "
                f"with --part K/{mark.n_parts}, or remove it"
            )
        self.check_sources(mark)
        return mark

    def begin(self, ranges: Mapping[str, tuple[float, float]]) -> PlanMark:
        """Note the plan; call it while holding the lock of the store."""
        mark = PlanMark(
            digest=self._plan.digest,
            title=self._plan.title,
            n_parts=self._n_parts,
            modified_ns=[modified_ns(file) for file in self._plan.request.files],
            ranges=dict(ranges),
        )
        with storage_errors(self.store):
            self.folder.mkdir(exist_ok=True)
        text = canonical_json(msgspec.to_builtins(mark))
        write_atomically(self.folder / PLAN_NAME, text, resumable=True)
        return mark

    def check_sources(self, mark: PlanMark) -> None:
        """Raise StoreError if a source file is not as it was when the store was begun."""
        for file, then_ns in zip(self._plan.request.files, mark.modified_ns, strict=True):
            if modified_ns(file) != then_ns:
                raise StoreError(
                    f"{file} was modified since the first part of {self.store} was written; "
                    "remove that folder and convert again"
                )

    def find(self, number: int) -> ShardInfo | None:
        """Return a finished shard, after a look at its files; None if it is not there as noted.

        Files of the size and time noted are taken as they are.
        """
        try:
            entry = msgspec.json.decode(self._entry(number).read_bytes(), type=_ShardEntry)
            checksums = np.frombuffer(entry.crc32c, dtype="<u4")
            moments = {
                name: np.frombuffer(octets, dtype="<f8").reshape(-1, N_MOMENTS)
                for name, octets in entry.statistics.items()
            }
            if entry.shard.n_samples != len(self._plan.shard(number)):
                return None
            for file, then_ns in zip(entry.shard.files, entry.modified_ns, strict=True):
                path = self.store / file.name
                if path.stat().st_size != file.nbytes or modified_ns(path) != then_ns:
                    return None
        except (FileNotFoundError, ValueError, msgspec.DecodeError):
            return None  # not as written: the shard is written again
        return ShardInfo(entry.shard, array("I", checksums.astype(np.uintc).tobytes()), moments)

    def add(self, number: int, info: ShardInfo) -> None:
        """Note that a shard is finished, its files in place."""
        entry = _ShardEntry(
            info.shard,
            [modified_ns(self.store / file.name) for file in info.shard.files],
            np.asarray(info.checksums, dtype="<u4").tobytes(),
            {n: np.asarray(each, dtype="<f8").tobytes() for n, each in info.moments.items()},
        )
        write_atomically(self._entry(number), msgspec.json.encode(entry), resumable=True)

    def make_folder(self) -> Path:
        """Return where the files of a shard are until they are finished: in a new folder.

        Objects appear as a whole: they are written in their place.
        """
        with storage_errors(self._work, resumable=True):
            self._work.mkdir(exist_ok=True)  # fails where another process finished the store
            if not is_local(self.store):
                return self.store
            folder = self._work / secrets.token_hex(8)
            folder.mkdir()
        return folder

    def clear(self, folder: Path) -> None:
        """Remove a folder of unfinished files."""
        if folder != self.store:
            remove_tree(folder)

    def tidy(self) -> None:
        """Remove what was left of unfinished shards of this part; its lock is held."""
        remove_tree(self._work)

    def remove(self) -> None:
        """Remove the journal and what was not finished: the store is; its lock is held."""
        remove_leftovers(self.store)
        remove_tree(self.folder)

    def _entry(self, number: int) -> Path:
        return self.folder / f"shard-{number:05d}.json"
