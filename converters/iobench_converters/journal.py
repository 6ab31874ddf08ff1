"""What an unfinished store is: its plan, who writes which shard, which shards are finished.

All of it lies in ``iobench.journal`` in the store's folder and goes when the store is finished::

    plan               digest of the plan, who began it, when its sources were modified
    shard-00003.json   a finished shard: its files and checksums, digests of bytes it was made of
    shard-00004/       a shard being written: the claim on it, and the files of whoever holds that
"""

from __future__ import annotations

from array import array
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.datasets import first_changed
from iobench.errors import StoreError
from iobench.stores import (
    JOURNAL_NAME,
    N_MOMENTS,
    Claim,
    ConversionPlan,
    Shard,
    ShardInfo,
    canonical_json,
    clear_scratch,
    crc32c_of_file,
    find_holder,
    find_writer,
    list_folders,
    modified_ns,
    open_scratch,
    read_json,
    remove_leftovers,
    remove_tree,
    storage_errors,
    try_claim,
    write_atomically,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

PLAN_NAME = "plan"


@dataclass(frozen=True, slots=True)
class PlanMark:
    """What the file ``plan`` says of the conversion that was begun."""

    digest: str
    title: str  # of its plan
    begun_by: str  # process, host and job
    # when each source file was modified last. Not part of the plan: a copy of the sources gives the
    # same store, but shards of one store are of the same state of them
    modified_ns: Sequence[int] = ()
    # of variables stored as int16, as found by a pass over the samples
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)


class Journal:
    """The journal of a store that is being written."""

    def __init__(self, path: Path, plan: ConversionPlan) -> None:
        self._store = path
        self._path = path / JOURNAL_NAME
        self._plan = plan
        self._digest = plan.digest

    def exists(self) -> bool:
        """Whether a conversion has begun and not tidied up."""
        return self._path.exists()

    def mark(self, files: Sequence[Path]) -> PlanMark | None:
        """Return what was begun, None if nothing was; check that it is what we are to write."""
        try:
            with storage_errors(self._path):
                values = read_json(self._path / PLAN_NAME)
            mark = PlanMark(**values)
        except FileNotFoundError:
            return None
        except (ValueError, TypeError) as error:
            raise StoreError(
                f"{self._path / PLAN_NAME} is damaged; remove {self._store} and convert again"
            ) from error
        if mark.digest != self._digest:
            raise StoreError(self._is_of_another(mark))
        self.check_sources(mark, files)
        return mark

    def begin(
        self, files: Sequence[Path], begun_by: str, ranges: Mapping[str, tuple[float, float]]
    ) -> PlanMark:
        """Note the plan; call it while holding the claim on the store."""
        times = [modified_ns(file) for file in files]
        ranges = {name: (low, high) for name, (low, high) in ranges.items()}
        mark = PlanMark(self._digest, self._plan.title, begun_by, times, ranges)
        values = {name: getattr(mark, name) for name in PlanMark.__slots__}
        with storage_errors(self._store):
            self._path.mkdir(exist_ok=True)
        write_atomically(self._path / PLAN_NAME, canonical_json(values).encode(), resumable=True)
        return mark

    def check_sources(self, mark: PlanMark, files: Sequence[Path]) -> None:
        """Raise StoreError if a source file is not as it was when the store was begun."""
        for file, then_ns in zip(files, mark.modified_ns, strict=True):
            if modified_ns(file) != then_ns:
                raise StoreError(
                    f"{file} was modified since the first part of {self._store} was written; "
                    "remove that folder and convert again"
                )

    def find(self, number: int) -> ShardInfo | None:
        """Return a finished shard, after a look at its files; None if it is not there as noted.

        Files of the size and time noted are taken as they are; others are read.
        """
        try:
            values = read_json(self._entry(number))
            checksums = _checksums(values)
            info = ShardInfo(
                Shard.from_dict(values["shard"]),
                checksums,
                values["lossy"],
                {name: _moments(digits) for name, digits in values["moments"].items()},
            )
            times = [int(time) for time in values["modified_ns"]]
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, AttributeError):
            return None  # not as written: the shard is written again
        is_full = info.shard.n_samples == len(self._plan.shard(number))
        return info if is_full and self._is_whole(info.shard, times) else None

    def check_bytes(self, files: Sequence[Path]) -> None:
        """Read again some of the bytes that finished shards were made of."""
        for number in range(self._plan.n_shards):
            try:
                noted = read_json(self._entry(number))["sources"]
                changed = first_changed(files, noted)
            except (FileNotFoundError, ValueError, KeyError, TypeError, IndexError):
                continue  # not finished, or not as written: the shard is written again
            if changed is not None:
                raise StoreError(
                    f"{changed[0]}: its bytes at offset {changed[1]} are not those that the first "
                    f"part of {self._store} was made of, though its size and time are; remove that "
                    "folder and convert again"
                )

    def add(self, number: int, info: ShardInfo, sources: Sequence[Any] = ()) -> None:
        """Note that a shard is finished, its files in place.

        ``sources`` are digests of some of the bytes it was made of: `UsedBytes.noted`.
        """
        values: dict[str, Any] = {
            # Hexadecimal: in base 85 they may spell "&pw=...", which is masked where JSON is made.
            "crc32c": np.asarray(info.checksums, dtype="<u4").tobytes().hex(),
            "lossy": info.lossy,
            "moments": {
                name: np.asarray(moments, dtype="<f8").tobytes().hex()
                for name, moments in info.moments.items()
            },
            "modified_ns": [modified_ns(self._store / file.name) for file in info.shard.files],
            "shard": info.shard.to_dict(),
            "sources": list(sources),
        }
        write_atomically(self._entry(number), canonical_json(values).encode(), resumable=True)

    def claim(self, number: int) -> Claim | None:
        """Return the claim on one shard, None where another process holds it.

        What an earlier holder left unfinished is removed.
        """
        folder = self._folder(number)
        with storage_errors(folder, resumable=True):
            folder.mkdir(exist_ok=True)
            try:
                held = try_claim(folder)
            except FileNotFoundError:  # who held it has just left and removed its folder
                if not self.exists():
                    raise
                return None
            if held is not None:
                for left in list_folders(folder):
                    clear_scratch(left, self._store)
        return held

    def scratch(self, held: Claim) -> Path:
        """Return a new folder for the files of the shard somebody holds."""
        folder = held.file.parent / held.holder.token
        open_scratch(folder, self._store)
        return folder

    def leave(self, held: Claim) -> None:
        """Give a shard back, and remove what was not moved into place."""
        folder = held.file.parent
        clear_scratch(folder / held.holder.token, self._store)
        held.release()
        with suppress(OSError):  # somebody else claims it already
            folder.rmdir()

    def tidy(self) -> None:
        """Remove what processes that ended left of unfinished shards."""
        with suppress(FileNotFoundError):
            for folder in list_folders(self._path):
                held = self.claim(int(folder.name.removeprefix("shard-")))
                if held is not None:
                    self.leave(held)

    def sweep(self) -> None:
        """Remove what was not finished of files about the whole; the claim on the store is held."""
        remove_leftovers(self._store)

    def holder(self, number: int) -> str:
        """Return who writes a shard, in words; "" if nobody does."""
        return str(find_holder(self._folder(number)) or "")

    def remove(self) -> None:
        """Remove the journal: the store is finished."""
        remove_tree(self._path)

    def _entry(self, number: int) -> Path:
        return self._path / f"shard-{number:05d}.json"

    def _folder(self, number: int) -> Path:
        return self._path / f"shard-{number:05d}"

    def _is_whole(self, shard: Shard, times: Sequence[int]) -> bool:
        try:
            for file, then_ns in zip(shard.files, times, strict=True):
                path = self._store / file.name
                if path.stat().st_size != file.nbytes:
                    return False
                if modified_ns(path) != then_ns and crc32c_of_file(path) != file.crc32c:
                    return False
        except (FileNotFoundError, ValueError):
            return False
        return True

    def _is_of_another(self, mark: PlanMark) -> str:
        writer = find_writer(self._store)
        now = f"; {writer} is writing it now" if writer is not None else ""
        return (
            f"{self._store} holds an unfinished store of something else (source files, samples or "
            f"options differ): {mark.title}, begun by {mark.begun_by}{now}; remove it or choose "
            "another folder"
        )


def _moments(digits: str) -> NDArray[np.float64]:
    """Return the moments an entry notes: a row for each group of values."""
    return np.frombuffer(bytes.fromhex(digits), dtype="<f8").reshape(-1, N_MOMENTS)


def _checksums(values: Mapping[str, Any]) -> array[int]:
    """Return the checksums an entry notes."""
    octets = bytes.fromhex(values["crc32c"])
    return array("I", np.frombuffer(octets, dtype="<u4").astype(np.uintc).tobytes())
