"""Which shards of an unfinished store are finished: one small file each, believed after a check."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

from iobench.errors import StoreError
from iobench.stores import (
    TEMPORARY_SUFFIX,
    ConversionPlan,
    Shard,
    ShardInfo,
    canonical_json,
    crc32c_of_file,
    storage_errors,
    write_atomically,
)

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Journal"]

JOURNAL_NAME = "iobench.journal"
PLAN_NAME = "plan"


class Journal:
    """The folder ``iobench.journal`` of a store that is being written.

    Parameters
    ----------
    path : Path
        The store's folder.
    """

    def __init__(self, path: Path) -> None:
        self._store = path
        self._path = path / JOURNAL_NAME

    def exists(self) -> bool:
        """Whether a conversion has begun and not tidied up."""
        return self._path.exists()

    def resume(self, plan: ConversionPlan) -> list[ShardInfo]:
        """Begin, or go on: return the shards that are there and whole, in order.

        Leftovers of an interrupted shard are removed. Call it while holding the claim.

        Raises
        ------
        StoreError
            If the unfinished store is one of another plan.
        """
        with storage_errors(self._store):
            self._path.mkdir(exist_ok=True)
            for folder in (self._store, self._path):
                for leftover in folder.glob(f".*{TEMPORARY_SUFFIX}"):
                    leftover.unlink(missing_ok=True)
            mark = self._path / PLAN_NAME
            if not mark.exists():
                write_atomically(mark, plan.digest.encode())
            elif mark.read_bytes() != plan.digest.encode():
                raise StoreError(
                    f"{self._store} holds an unfinished store of something else (source files, "
                    "samples or options differ); remove it or choose another --store-dir"
                )
        finished: list[ShardInfo] = []
        for samples in plan.shards:
            info = self._read(len(finished))
            if info is None or info.shard.n_samples != len(samples) or not self._is_whole(info):
                break
            finished.append(info)
        return finished

    def add(self, number: int, info: ShardInfo) -> None:
        """Note that a shard is finished."""
        values = {"checksums": list(info.checksums), "shard": info.shard.to_dict()}
        write_atomically(self._entry(number), canonical_json(values).encode())

    def remove(self) -> None:
        """Remove the journal: the store is finished."""
        with storage_errors(self._path):
            shutil.rmtree(self._path, ignore_errors=True)

    def _entry(self, number: int) -> Path:
        return self._path / f"shard-{number:05d}.json"

    def _read(self, number: int) -> ShardInfo | None:
        try:
            values = json.loads(self._entry(number).read_bytes())
            return ShardInfo(Shard.from_dict(values["shard"]), list(map(int, values["checksums"])))
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None  # not there, or not as written: the shard is written again

    def _is_whole(self, info: ShardInfo) -> bool:
        try:
            return all(
                (self._store / file.name).stat().st_size == file.nbytes
                and crc32c_of_file(self._store / file.name) == file.crc32c
                for file in info.shard.files
            )
        except FileNotFoundError:
            return False
