"""Where a dataset's files are, by the URLs they are published under, and stand-ins for them.

Looked in, in order: the folder that the user gives, else CliMetLab's mirror and cache, else a
stand-in. Each file of a stand-in appears whole and is never overwritten. Its manifest
(``stand-in.json``) is there first and says once all are there: an unfinished stand-in is finished
with the files that it lacks.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec

from iobench.datasets.climetlab_files import (
    PluginCall,
    cache_folder,
    cached_files,
    download_through_plugin,
)
from iobench.datasets.contract import Dataset, Progress, Synthesizer, no_progress
from iobench.datasets.setup_processes import run_jobs
from iobench.errors import MissingFileError, OptionError, StorageError
from iobench.files.atomic import storage_errors, write_atomically
from iobench.files.locks import locked
from iobench.stores.places import make_item

MIRROR_VARIABLE: Final = "CLIMETLAB_MIRROR"
MANIFEST: Final = "stand-in.json"


class FileLocator:
    """Finds files by URL in a data folder, CliMetLab's mirror and cache, or a stand-in.

    ``cache_dir`` is where what is learnt of files is kept, see `iobench.datasets.catalogued`.
    """

    def __init__(
        self,
        *,
        cache_dir: Path,
        data_dir: Path | None = None,
        stand_in: Path | None = None,
        progress: Progress = no_progress,
    ) -> None:
        self.cache_dir = cache_dir
        self.progress = progress
        self.stand_in = stand_in is not None
        self.tiny = False
        self.n_found = 0
        self._data_dir = data_dir
        self._stand_in_root = stand_in
        self._mirror = os.environ.get(MIRROR_VARIABLE, "")

    def find(self, urls: Sequence[str]) -> list[Path | None]:
        """Return for each URL the local file that holds it, or None."""
        places = [next(filter(_is_file, self._candidates(url)), None) for url in urls]
        paths = [None if place is None else Path(place) for place in places]
        self._note_files([path for path in paths if path is not None])
        return paths

    def list_folder(self, url: str, suffix: str) -> list[Path]:
        """Return the files of a published folder that are at hand and end so, by name.

        For datasets whose files have names that nobody can foretell.
        """
        for folder in map(Path, self._candidates(url)):
            names = sorted(folder.iterdir()) if folder.is_dir() else []
            files = [each for each in names if each.name.endswith(suffix) and each.name[0] != "."]
            if files:
                self._note_files(files)
                return files
        return []

    def searched(self) -> str:
        """Return where ``find`` looks, in words, for error messages."""
        if self._stand_in_root is not None:
            return f"the stand-in {self._stand_in_root}"
        if self._data_dir is not None:
            return f"--data-dir {self._data_dir} (as a CliMetLab mirror, a bucket or a flat folder)"
        mirror = self._mirror or "(not set)"
        return f"${MIRROR_VARIABLE} {mirror}, CliMetLab's cache {cache_folder()}"

    @cached_property
    def _cached(self) -> dict[str, Path]:
        return cached_files(cache_folder())

    def _candidates(self, url: str) -> Iterator[str]:
        # Text, not Paths: a dataset may ask for thousands of URLs of which few are here.
        mirrored = in_mirror(url)
        path = mirrored.split("/", 3)[3]
        if self._stand_in_root is not None:
            yield f"{self._stand_in_root}/{mirrored}"
        elif self._data_dir is not None:
            in_bucket = path.partition("/")[2]
            for inside in (mirrored, path, in_bucket, path.rpartition("/")[2]):
                if inside:
                    yield f"{self._data_dir}/{inside}"
        else:
            if self._mirror:
                yield f"{self._mirror}/{mirrored}"
            if url in self._cached:
                yield str(self._cached[url])

    def _note_files(self, paths: Sequence[Path]) -> None:
        """Count what was found, and note whether a stand-in was in the user's own folders."""
        self.n_found += len(paths)
        folders = {path.parent for path in paths}
        for top in {top for folder in folders for top in (folder, *folder.parents)}:
            if (manifest := _manifest(top)) is not None:
                if not manifest.is_whole:
                    raise StorageError(
                        f"{top}: holds an unfinished stand-in; finish it with iobench synthesize, "
                        "or delete the folder"
                    )
                self.stand_in, self.tiny = True, self.tiny or manifest.tiny


Locator = FileLocator  # what datasets are given, in annotations


def in_mirror(url: str) -> str:
    """Return where a mirror, as CliMetLab's, has the file of a URL."""
    parts = urlsplit(url)
    return f"url/{parts.scheme}/{parts.netloc}/{parts.path.lstrip('/')}"


def _is_file(path: str) -> bool:
    """Return whether a file is there; raise StorageError of something that cannot be read."""
    try:
        os.lstat(path)  # of text, not a Path: thousands of them are not there
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise StorageError(f"{path}: cannot be reached ({error.strerror})") from error
    if not (Path(path).is_file() and os.access(path, os.R_OK)):
        raise StorageError(
            f"{path}: expected a file that may be read, found a folder, a link to nothing or no "
            "permission; mend it or move it away"
        )
    return True


def download_missing(
    calls: Sequence[PluginCall], locator: FileLocator, *, progress: Progress = no_progress
) -> int:
    """Fetch what the locator does not find, and return how many files that were."""

    def missing(urls: Sequence[str]) -> list[str]:
        paths = locator.find(urls)
        return [url for url, path in zip(urls, paths, strict=True) if path is None]

    due = [(call, urls) for call in calls if (urls := missing(call.urls))]
    total, done = sum(len(urls) for _, urls in due), 0
    for call, urls in due:
        download_through_plugin(call)
        done += len(urls)
        progress(done, total)
        cached = cached_files(cache_folder())
        if still := [url for url in urls if url not in cached or not cached[url].is_file()]:
            raise MissingFileError(
                f"{call.name}: the plugin ended without fetching {', '.join(still)}; is that file "
                "published? Where the disk is fuller than its setting maximum-cache-disk-usage, "
                "CliMetLab deletes what it has fetched"
            )
    return total


# ---- stand-ins


class _Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What is said of a stand-in, which is whole or only begun."""

    dataset: str
    version: int
    seed: int
    scale: float | None
    tiny: bool
    is_whole: bool = False


def _manifest(folder: Path) -> _Manifest | None:
    """Return what is said of the stand-in in a folder; None where there is none."""
    path = folder / MANIFEST
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Manifest)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except msgspec.MsgspecError as error:
        raise StorageError(
            f"{path}: is not iobench's list of a stand-in ({error}); delete its folder"
        ) from error


def stand_in_folder(dataset: Synthesizer, place: Path, *, tiny: bool = False) -> Path:
    """Return where a dataset's stand-in lies below a folder of stores."""
    name = getattr(dataset, "stand_in_name", dataset.name)
    size = "tiny" if tiny else "default"
    return place / "stand-ins" / f"{name}-v{dataset.synthesis_version}-{size}-seed0"


def locate_files(
    dataset: Dataset,
    *,
    store_root: Path,
    cache_dir: Path,
    data_dir: Path | None = None,
    tiny: bool = False,
    progress: Progress = no_progress,
    notice: Callable[[str], None] | None = None,
) -> tuple[list[Path], FileLocator]:
    """Return the dataset's files and the locator that found them, of a stand-in if need be.

    A stand-in is made only where none of the real files is at hand, or where ``tiny`` asks for
    one; real files and a stand-in's are never mixed.
    """
    if data_dir and tiny:
        raise OptionError(
            f"--data-dir {data_dir}: holds files of your own, --tiny asks for a stand-in; give one "
            "of them"
        )
    if not tiny:
        real = FileLocator(data_dir=data_dir, cache_dir=cache_dir, progress=progress)
        try:
            return dataset.files(real), real
        except MissingFileError:
            if data_dir or real.n_found or not isinstance(dataset, Synthesizer):
                raise
    if not isinstance(dataset, Synthesizer):
        raise OptionError(f"{dataset.name}: has no stand-in; leave out --tiny")
    root = stand_in_folder(dataset, store_root, tiny=tiny)
    ensure_stand_in(dataset, root, tiny=tiny, progress=progress, notice=notice)
    locator = FileLocator(stand_in=root, cache_dir=cache_dir, progress=progress)
    return dataset.files(locator), locator


def ensure_stand_in(
    dataset: Synthesizer,
    root: Path,
    *,
    seed: int = 0,
    scale: float | None = None,
    tiny: bool = False,
    progress: Progress = no_progress,
    notice: Callable[[str], None] | None = None,
) -> Path:
    """Return the top of the mirror layout with the finished stand-in, written if need be.

    ``notice`` is called with who else is writing it, before waiting for them.
    """
    if scale is not None and not 0 < scale <= 1:
        raise OptionError(f"--scale {scale:g}: expected a share above 0 and up to 1")
    if tiny and scale is not None:
        raise OptionError(f"--tiny and --scale {scale:g} are two sizes: give one of them")
    if seed < 0:
        raise OptionError(f"--seed {seed}: expected 0 or more")
    name, version = getattr(dataset, "stand_in_name", dataset.name), dataset.synthesis_version
    begun = _Manifest(dataset=name, version=version, seed=seed, scale=scale, tiny=tiny)
    files = dataset.stand_in_files(seed=seed, scale=scale, tiny=tiny)
    if _is_whole(root, begun, files):
        return root
    make_item(root, kind="stand-in", title=f"stand-in of {dataset.name}")
    with locked(root, notice=notice):
        if not _is_whole(root, begun, files):  # nor made by another while this one waited
            _write_manifest(root, begun)
            # Of a tiny one the processes would take longer to start than the files to write.
            write_stand_in(root, files, processes=1 if tiny else None, progress=progress)
            _write_manifest(root, msgspec.structs.replace(begun, is_whole=True))
    return root


def _is_whole(root: Path, begun: _Manifest, files: Iterable[str]) -> bool:
    """Return whether a stand-in is there with all its files; refuse another one."""
    if (manifest := _manifest(root)) is None:
        return False
    if (own := msgspec.structs.replace(manifest, is_whole=False)) != begun:
        there, expected = (msgspec.json.encode(each).decode() for each in (own, begun))
        raise StorageError(
            f"{root}: holds another stand-in, {there}, expected {expected}; delete it or give "
            "another folder"
        )
    return manifest.is_whole and all((root / name).exists() for name in files)


def _write_manifest(root: Path, manifest: _Manifest) -> None:
    text = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
    write_atomically(root / MANIFEST, text + b"\n")


def write_stand_in(
    root: Path,
    files: Mapping[str, Callable[[Path], None]],
    *,
    processes: int | None = 1,
    progress: Progress = no_progress,
) -> None:
    """Write the files of a stand-in that are not there yet, by default one after the other.

    Each is written under a temporary name, flushed and renamed.
    """
    missing = [(root / name, write) for name, write in files.items() if not (root / name).exists()]
    for done, _ in enumerate(run_jobs(_write_file, missing, processes=processes), start=1):
        progress(done, len(missing))


def _write_file(job: tuple[Path, Callable[[Path], None]]) -> None:
    path, write = job
    temporary = path.with_name(f".{path.name}.partial")
    with storage_errors(path, resumable=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            write(temporary)
            with temporary.open("rb+") as stream:
                os.fsync(stream.fileno())
            temporary.replace(path)
        except OSError:
            temporary.unlink(missing_ok=True)  # gives a full disk its space back
            raise
