"""What a source has to be copied: the files of a finished store, files and folders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field, replace
from itertools import accumulate
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

import numpy as np

from iobench.errors import FileFormatError, MissingFileError, OptionError, StoreError
from iobench.files.claims import CLAIM_NAME
from iobench.files.urls import URL, as_path, range_file
from iobench.frozen import frozen
from iobench.recording.job import find_host
from iobench.registry import find_format
from iobench.staging.copying import ListedFile
from iobench.stores.finished_store import (
    CHECKSUMS_NAME,
    finish_store,
    open_store,
    read_checksums,
)
from iobench.stores.index_file import has_index, write_index
from iobench.stores.manifest import MANIFEST_NAME, Manifest, Shard
from iobench.stores.places import MARK_NAME, STAGED_NAME, mark_of

if TYPE_CHECKING:
    from iobench.stores.contract import Store
    from iobench.stores.manifest import ShardFile

Part = tuple[int, int]
"""Which part, from 1, of how many."""

OURS: Final = (MARK_NAME, STAGED_NAME, CLAIM_NAME)


@frozen
class Listing:
    """All that a copy will be.

    Attributes
    ----------
    name : str
        Of its folder.
    source, kind, part : str
        As of `StagedCopy`.
    files : tuple of ListedFile
        The last makes a store a finished one.
    finish : callable, optional
        Writes what makes files of a part a store of its own, into their folder.
    """

    name: str
    source: str
    kind: str
    part: str
    files: tuple[ListedFile, ...]
    finish: Callable[[Path], None] | None = field(default=None, compare=False)
    n_samples: int | None = None
    of_n_samples: int | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of all files."""
        return sum(file.nbytes for file in self.files)


def part_of(text: str) -> Part | None:
    """Return which part is meant by ``"2/4"``, or by ``"node"``; None for all, on a single node.

    Raises
    ------
    OptionError
        If that is none, or nothing tells which node this is.
    """
    if text == "node":
        host = find_host()
        if host is None:
            raise OptionError(
                "part node: neither torchrun, SLURM nor MPI says which of how many nodes this is; "
                "give it as K/N"
            )
        return None if host.count == 1 else (host.number + 1, host.count)
    number, _, count = text.partition("/")
    if number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count):
        return int(number), int(count)
    raise OptionError(f"part {text!r}: expected node, or K/N such as 1/4, from 1/4 to 4/4")


def list_source(source: Path | str | Sequence[Path | str], part: Part | None = None) -> Listing:
    """Return what there is to be copied.

    Raises
    ------
    MissingFileError, StoreError, FileFormatError
        If a source is not there, is an unfinished store, or would be a file and a folder in one.
    OptionError
        If there are fewer parts than asked for.
    """
    given = [source] if isinstance(source, str | Path) else list(source)
    paths = [_named(as_path(each)) for each in given]
    if not paths:
        raise OptionError("nothing to stage: name a store, files or a folder")
    told = ", ".join(str(path) for path in paths[:3]) + (", ..." if paths[3:] else "")
    first = paths[0]
    if len(paths) == 1 and (first / MANIFEST_NAME).is_file():
        return _of_store(open_store(first), part)
    files = []
    above = _above(paths)
    for path in paths:
        if path.is_dir():
            if (path / MANIFEST_NAME).is_file():
                raise OptionError(f"{path}: a finished store is staged by itself; name no other")
            if mark_of(path)[0] in ("store", "probe"):
                raise StoreError(
                    f"{path} is not a finished store: it has no {MANIFEST_NAME}; run its "
                    "conversion again to finish it"
                )
            files += _of_folder(path, above if len(paths) > 1 else path)
        elif path.is_file():
            files.append(_of_file(path, path.relative_to(above).as_posix()))
        else:
            raise MissingFileError(f"{path}: no such file, folder or store to stage")
    files.sort(key=lambda each: each.name)
    names = [each.name for each in files]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise OptionError(f"{twice}: two sources have a file of this name; stage them apart")
    folders = {above.as_posix() for name in names for above in PurePosixPath(name).parents}
    if both := sorted(folders & {*names}):
        raise FileFormatError(f"{told}: {both[0]} is a file in it and a folder; nothing was staged")
    if part is not None:
        files = files[part[0] - 1 :: part[1]]
    if not files:
        raise OptionError(
            f"{told}: holds no file to stage" + (f" in part {_spelled(part)}" if part else "")
        )
    name = first.name if len(paths) == 1 else above.name
    return Listing(name or "files", told, "files", _spelled(part), tuple(files))


def _named(path: Path) -> Path:
    """Return a path whose last part is a name, as the folder of the copy has it."""
    if isinstance(path, URL):
        return path
    return path.resolve() if ".." in path.parts else path.absolute()


def _spelled(part: Part | None) -> str:
    return "" if part is None else f"{part[0]}/{part[1]}"


def _above(paths: Sequence[Path]) -> Path:
    """Return the folder that all of them are below."""
    folder = paths[0].parent
    while not all(path.parent.is_relative_to(folder) for path in paths):
        if folder == folder.parent:
            raise OptionError(f"{paths[0]} and {paths[1]} are in no folder; stage them apart")
        folder = folder.parent
    return folder


def _of_folder(folder: Path, above: Path) -> list[ListedFile]:
    found = []
    for path in folder.rglob("*"):
        if path.name.startswith(OURS):
            continue
        if path.is_file():
            found.append(_of_file(path, path.relative_to(above).as_posix()))
        elif not isinstance(path, URL) and path.is_symlink():
            raise MissingFileError(
                f"{path}: is a link to no file, and links to folders are not followed; name what "
                "is meant instead, or remove it"
            )
    return found


def _of_file(path: Path, name: str) -> ListedFile:
    try:
        status = path.stat()
    except FileNotFoundError as error:
        raise MissingFileError(f"{path}: no such file") from error
    version = path.version() if isinstance(path, URL) else str(status.st_mtime_ns)
    return ListedFile(name, status.st_size, version, range_file(path), modified=version)


def _of_store(store: Store, part: Part | None) -> Listing:
    manifest = store.manifest
    if part is not None:
        return _part_of_store(store, part)
    files = [_of_shard(store, file) for file in manifest.files]
    files += [_of_file(store.path / name, name) for name in (CHECKSUMS_NAME, MANIFEST_NAME)]
    n = len(store)
    return Listing(store.path.name, str(store.path), "store", "", tuple(files), None, n, n)


def _of_shard(store: Store, file: ShardFile, name: str = "") -> ListedFile:
    path = range_file(store.path / file.name)
    return ListedFile(name or file.name, file.nbytes, f"{file.crc32c:08x}", path, file.crc32c)


def _part_of_store(store: Store, part: Part) -> Listing:
    """Return every n-th shard of a store, which become a store of their own.

    Shards of neighbouring samples go to different nodes, so that each has some of all seasons. They
    take the names of the first ones: Zarr finds chunks by their numbers.
    """
    manifest = store.manifest
    number, count = part
    shards = manifest.shards[number - 1 :: count]
    if len(manifest.shards) < count:
        raise OptionError(
            f"{store.path}: {len(manifest.shards)} shards cannot be dealt to {count} nodes; "
            "convert it with a smaller --shard-size, or stage all of it on each"
        )
    if manifest.sample_grid:
        raise OptionError(
            f"{store.path}: its samples fill a grid, of which a part is none; stage all of it"
        )
    starts = [0, *accumulate(shard.n_samples for shard in manifest.shards)]
    chosen = np.concatenate(
        [np.arange(starts[n], starts[n + 1]) for n in range(number - 1, len(starts) - 1, count)]
    )
    files, renamed = [], []
    for shard, named in zip(shards, manifest.shards, strict=False):
        names = [file.name for file in named.files]
        files += [_of_shard(store, f, name) for f, name in zip(shard.files, names, strict=True)]
        kept = [replace(f, name=name) for f, name in zip(shard.files, names, strict=True)]
        renamed.append(Shard(shard.n_samples, tuple(kept)))
    mine = replace(
        manifest,
        shards=tuple(renamed),
        samples=[manifest.samples[each] for each in chosen.tolist()],
        metadata=(),
        plan=f"{manifest.plan}, part {number} of {count}",
        provenance={**manifest.provenance, "part": f"{number}/{count}"},
    )

    def finish(folder: Path) -> None:
        _finish_part(store, mine, chosen.tolist(), folder)

    return Listing(
        store.path.name,
        str(store.path),
        "store",
        _spelled(part),
        tuple(files),
        finish,
        len(chosen),
        len(store),
    )


def _finish_part(store: Store, mine: Manifest, chosen: list[int], folder: Path) -> None:
    if has_index(store.manifest):
        mine = replace(mine, metadata=(write_index(folder, store.index(), chosen),))
    n_extents = len(store.extents(0)) if len(store) else 0
    every = read_checksums(store.path, len(store) * n_extents).reshape(len(store), n_extents)
    finish_store(
        folder,
        find_format(mine.format),
        mine,
        checksums=every[chosen].reshape(-1).tolist(),
        n_samples=store.manifest.shards[0].n_samples,
    )
