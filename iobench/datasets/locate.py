"""Where a dataset's files are, by the URLs they are published under.

Looked in, in order: the folder that the user gives, which may be a URL, else CliMetLab's mirror and
cache, else a stand-in. The network is tried only where the user names a place on it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from iobench.datasets.climetlab_files import (
    LEAST_S,
    TIMEOUT_S,
    Downloads,
    cache_folder,
    cached_files,
    download_through_plugin,
)
from iobench.datasets.contract import Progress, no_progress
from iobench.datasets.setup_processes import stopwatch
from iobench.errors import MissingFileError, OptionError, StorageError
from iobench.files.objects import states_of
from iobench.files.urls import URL, file_below, range_file
from iobench.json_files import read_json

MIRROR_VARIABLE: Final = "CLIMETLAB_MIRROR"
MANIFEST: Final = "stand-in.json"  # at the top of a stand-in; it lists no file until all are there
MAX_ASKED: Final = 1024  # files of a web server that are asked for one by one


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
        self._there: dict[URL, URL] = {}  # files behind URLs, as they were when first looked for
        self._looked_for: set[URL] = set()

    def find(self, urls: Sequence[str]) -> list[Path | None]:
        """Return for each URL the local file that holds it, or None."""
        layouts = [[*self._candidates(url)] for url in urls]
        self._look(each for layout in layouts for each in layout)
        paths = [next(filter(None, map(self._at_hand, layout)), None) for layout in layouts]
        self._note_files([path for path in paths if path is not None])
        return paths

    def list_folder(self, url: str, suffix: str) -> list[Path]:
        """Return the files of a published folder that are at hand and end so, by name.

        For datasets whose files have names that nobody can foretell. Of a web server, which lists
        nothing, none.
        """
        for candidate in self._candidates(url):
            folder = candidate if isinstance(candidate, URL) else Path(candidate)
            if folder.can_list if isinstance(folder, URL) else folder.is_dir():
                names = sorted(each for each in folder.iterdir() if each.name.endswith(suffix))
                if files := [each for each in names if not each.name.startswith(".")]:
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

    def _candidates(self, url: str) -> Iterator[str | URL]:
        # Text, not Paths: a dataset may ask for thousands of URLs of which few are here.
        mirrored = in_mirror(url)
        path = mirrored.split("/", 3)[3]
        if self._stand_in_root is not None:
            yield f"{self._stand_in_root}/{mirrored}"
        elif self._data_dir is not None:
            in_bucket = path.partition("/")[2]
            for inside in (mirrored, path, in_bucket, path.rpartition("/")[2]):
                if inside:
                    yield file_below(range_file(self._data_dir), inside)
        else:
            if self._mirror:
                yield f"{self._mirror}/{mirrored}"
            if url in self._cached:
                yield str(self._cached[url])

    def _at_hand(self, candidate: str | URL) -> Path | None:
        if isinstance(candidate, URL):
            return self._there.get(candidate)
        return Path(candidate) if _is_file(candidate) else None

    def _look(self, candidates: Iterator[str | URL]) -> None:
        """Look behind URLs: a listing of each folder; of a web server, a question for each file."""
        urls = dict.fromkeys(each for each in candidates if isinstance(each, URL))
        new = [url for url in urls if url not in self._looked_for]
        self._looked_for.update(new)
        single = [url for url in new if not url.can_list]
        if len(single) > MAX_ASKED:
            raise OptionError(
                f"{single[0].parent}: a web server lists no files, and {len(single)} may be there; "
                "choose some with --option, or name a place that can be listed (s3://...)"
            )
        states = zip(single, states_of(single, may_hide=True), strict=True)
        there = [url.with_state(state) for url, state in states if state is not None]
        for folder in dict.fromkeys(url.parent for url in new if url.can_list):
            there += folder.iterdir()
        self._there.update((url, url) for url in there if url.is_file())

    def _note_files(self, paths: Sequence[Path]) -> None:
        """Count what was found, and note whether a stand-in was in the user's own folders."""
        self.n_found += len(paths)
        for folder in {path.parent for path in paths}:
            tops = [folder, *folder.parents]
            if isinstance(folder, URL):
                mirror, below, _ = folder.path.partition("/url/http")  # each place is a request
                likely = {self._data_dir, folder.with_path(mirror) if below else None}
                tops = [top for top in tops if top in likely]
            marks = [range_file(top / MANIFEST) for top in tops]
            self._look(iter(marks))
            for top in (top for top, mark in zip(tops, marks, strict=True) if self._at_hand(mark)):
                manifest = stand_in_manifest(top)
                if not manifest["files"]:
                    raise StorageError(
                        f"{top}: holds an unfinished stand-in; finish it with iobench synthesize, "
                        "or delete the folder"
                    )
                self.stand_in, self.tiny = True, self.tiny or bool(manifest["tiny"])


def download_missing(
    downloads: Downloads,
    locator: FileLocator,
    *,
    timeout_s: float = TIMEOUT_S,
    progress: Progress = no_progress,
) -> int:
    """Fetch what the locator does not find, and return how many files that were."""

    def missing(urls: Sequence[str]) -> list[str]:
        paths = locator.find(urls)
        return [url for url, path in zip(urls, paths, strict=True) if path is None]

    if absent := missing(downloads.others):
        raise MissingFileError(
            f"{', '.join(absent)}: cannot be downloaded and is not in {locator.searched()}; put "
            "it there first, or ask for samples without it"
        )
    due = [(call, missing(call.urls)) for call in downloads.calls]
    due = [(call, urls) for call, urls in due if urls or not call.urls]
    total, done = sum(len(urls) for _, urls in due), 0
    watch = stopwatch()
    for call, urls in due:
        download_through_plugin(call, timeout_s=max(timeout_s - watch(), LEAST_S))
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


Locator = FileLocator  # what datasets are given, in annotations


def stand_in_manifest(folder: Path) -> dict[str, Any]:
    """Return what is said of the stand-in in a folder: its size, and its files once it is whole."""
    try:
        manifest: dict[str, Any] = read_json(folder / MANIFEST)
        _ = manifest["tiny"], [(each["name"], each["nbytes"]) for each in manifest["files"]]
    except (ValueError, KeyError, TypeError) as error:
        raise StorageError(
            f"{folder / MANIFEST}: is not iobench's list of a stand-in ({error}); delete its folder"
        ) from error
    return manifest


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
