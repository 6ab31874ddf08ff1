"""Finds a dataset's files by the URL they are published under.

Looked in, in order: the folder and the pattern of paths the user gives, which may be URLs, else
CliMetLab's mirror and cache (without importing climetlab), else a stand-in. The network is tried
only where the user names a place on it.
"""

from __future__ import annotations

import getpass
import os
import re
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from iobench.datasets.contract import Locator, Progress, no_progress
from iobench.errors import OptionError, StorageError
from iobench.files.objects import states_of
from iobench.files.urls import URL, file_below, range_file
from iobench.json_files import parse_json, read_json

if TYPE_CHECKING:
    from iobench.datasets.patterns import FilePattern

MIRROR_VARIABLE = "CLIMETLAB_MIRROR"
MANIFEST = "stand-in.json"
"""At the top of a stand-in; it lists no file until all are there."""
MAX_ASKED: Final = 1024
"""Files of a web server that are asked for one by one."""


class FileLocator:
    """Finds files by URL in a data folder, CliMetLab's mirror and cache, or a stand-in."""

    def __init__(
        self,
        *,
        cache_dir: Path,
        data_dir: Path | None = None,
        pattern: FilePattern | None = None,
        stand_in: Path | None = None,
        progress: Progress = no_progress,
        environment: Mapping[str, str] | None = None,
        home: Path | None = None,
    ) -> None:
        self.cache_dir = cache_dir
        self.progress = progress
        self.stand_in = stand_in is not None
        self.tiny = False
        self.n_found = 0
        self._data_dir = data_dir
        self._pattern = pattern
        self._stand_in_root = stand_in
        self._environment = os.environ if environment is None else environment
        self._home = home

    def find(self, urls: Sequence[str]) -> list[Path | None]:
        """Return for each URL the local file that holds it, or None."""
        layouts = [[*self._candidates(url)] for url in urls]
        behind_urls = [each for layout in layouts for each in layout if isinstance(each, URL)]
        self._remote.look(behind_urls)
        paths = [next(filter(None, map(self._at_hand, layout)), None) for layout in layouts]
        self._note_files([path for path in paths if path is not None])
        return paths

    def _at_hand(self, candidate: str | URL) -> Path | None:
        if isinstance(candidate, URL):
            return self._remote.files.get(candidate)
        return Path(candidate) if _readable_file(candidate) else None

    def list_folder(self, url: str, suffix: str) -> list[Path]:
        """Return the files of a published folder that are at hand and end so, by name.

        Of a web server, which lists nothing, none.
        """
        for candidate in self._candidates(url):
            folder = candidate if isinstance(candidate, URL) else Path(candidate)
            if isinstance(folder, URL) and not folder.can_list:
                continue
            if isinstance(folder, URL) or folder.is_dir():
                names = sorted(each for each in folder.iterdir() if each.name.endswith(suffix))
                if files := [each for each in names if not each.name.startswith(".")]:
                    self._note_files(files)
                    return files
        return []

    def _note_files(self, paths: Sequence[Path]) -> None:
        self.n_found += len(paths)
        for folder in {path.parent for path in paths}:
            self._note_stand_in(folder)

    def searched(self) -> str:
        """Return where ``find`` looks, in words, for error messages."""
        if self._stand_in_root is not None:
            return f"the stand-in {self._stand_in_root}"
        places = []
        if self._data_dir is not None:
            places.append(
                f"--data-dir {self._data_dir} (as a CliMetLab mirror, a bucket or a flat folder)"
            )
        if self._pattern is not None:
            places.append(f"--files {self._pattern.text}")
        if places:
            return " and ".join(places)
        mirror = self._mirror or "(not set)"
        return f"${MIRROR_VARIABLE} {mirror}, CliMetLab's cache {self._cache_folder}"

    def _note_stand_in(self, folder: Path) -> None:
        tops = [folder, *folder.parents]
        if isinstance(folder, URL):
            mirror, below, _ = folder.path.partition("/url/http")  # each place is a request
            likely = {self._data_dir, folder.with_path(mirror) if below else None}
            tops = [top for top in tops if top in likely]
            marks = (top / MANIFEST for top in tops)
            self._remote.look([mark for mark in marks if isinstance(mark, URL)])
        for top in tops:
            if not self._has(top / MANIFEST):
                continue
            manifest = stand_in_manifest(top)
            if not manifest["files"]:
                raise StorageError(
                    f"{top}: holds an unfinished stand-in; finish it with iobench synthesize, or "
                    "delete the folder"
                )
            self.stand_in, self.tiny = True, self.tiny or bool(manifest["tiny"])

    def _has(self, path: Path) -> bool:
        return path in self._remote.files if isinstance(path, URL) else _readable_file(path)

    @cached_property
    def _remote(self) -> _RemoteFiles:
        return _RemoteFiles()

    @property
    def _mirror(self) -> str:
        return self._environment.get(MIRROR_VARIABLE, "")

    @cached_property
    def _cache_folder(self) -> Path:
        return climetlab_cache_folder(self._home)

    @cached_property
    def _cached(self) -> dict[str, Path]:
        return climetlab_cached_files(self._cache_folder)

    def _candidates(self, url: str) -> Iterator[str | URL]:
        # Text, not Paths: a dataset may ask for thousands of URLs of which few are here.
        mirrored = in_mirror(url)
        path = mirrored.split("/", 3)[3]
        if self._stand_in_root is not None:
            yield f"{self._stand_in_root}/{mirrored}"
        elif self._data_dir is not None or self._pattern is not None:
            in_bucket = path.partition("/")[2]
            for inside in (mirrored, path, in_bucket, path.rpartition("/")[2]):
                if inside and self._data_dir is not None:
                    yield file_below(range_file(self._data_dir), inside)
            own = self._pattern.find(url) if self._pattern is not None else None
            if own is not None:
                yield range_file(own)
        else:
            if self._mirror:
                yield f"{self._mirror}/{mirrored}"
            if url in self._cached:
                yield str(self._cached[url])


class _RemoteFiles:
    """Files behind URLs, by URL as ``found``, as they were when they were first looked for."""

    def __init__(self) -> None:
        self.files: dict[URL, URL] = {}
        self._looked_for: set[URL] = set()

    def look(self, urls: Sequence[URL]) -> None:
        """Look for files: a listing of each folder, of a web server a question for each file."""
        new = [url for url in dict.fromkeys(urls) if url not in self._looked_for]
        self._looked_for.update(new)
        single = [url for url in new if not url.can_list]
        if len(single) > MAX_ASKED:
            raise OptionError(
                f"{single[0].parent}: a web server lists no files, and {len(single)} may be there; "
                "choose some with --option, or name a place that can be listed (s3://...)"
            )
        states = zip(single, states_of(single, may_hide=True), strict=True)
        self._keep(url.with_state(state) for url, state in states if state is not None)
        for folder in dict.fromkeys(url.parent for url in new if url.can_list):
            self._keep(folder.iterdir())

    def _keep(self, urls: Iterable[URL]) -> None:
        self.files.update((url, url) for url in urls if url.is_file())


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


def listed_files(locator: Locator, url: str, suffix: str) -> list[Path]:
    """Return the files of a folder that is published under a URL, as far as they are at hand.

    For datasets whose files have names that nobody can foretell.
    """
    return locator.list_folder(url, suffix) if isinstance(locator, FileLocator) else []


def climetlab_cache_folder(home: Path | None = None) -> Path:
    """Return CliMetLab's cache folder: its setting ``cache-directory``, else its default.

    The settings file is one ``key: value`` a line, as CliMetLab writes it.
    """
    with suppress(RuntimeError):  # who has no home has no settings in it
        home = home or Path.home()
    settings = (home or Path("/")) / ".climetlab" / "settings.yaml"
    try:
        text = settings.read_text()
    except FileNotFoundError:
        text = ""
    except OSError as error:
        raise StorageError(
            f"{settings}: cannot be read ({error.strerror}), so CliMetLab's cache is not known; "
            "give --data-dir"
        ) from error
    setting = re.search(r"^cache-directory:[ \t]*['\"]?(.*?)['\"]?[ \t]*$", text, re.MULTILINE)
    if setting and setting[1]:
        return Path(setting[1]).expanduser()
    try:
        return Path(tempfile.gettempdir(), f"climetlab-{getpass.getuser()}")
    except (KeyError, OSError):  # a number without a name
        return Path(tempfile.gettempdir(), f"climetlab-{os.getuid()}")


def climetlab_cached_files(folder: Path) -> dict[str, Path]:
    """Return the whole files in a CliMetLab cache by their URL."""
    database = folder / "cache-2.db"
    if not _readable_file(database):
        return {}
    import sqlite3

    try:
        connection = sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True)
        try:
            rows = connection.execute("SELECT path, args FROM cache").fetchall()
        finally:
            connection.close()
        entries = [(Path(path), parse_json(args)) for path, args in rows]
    except (sqlite3.Error, ValueError, TypeError) as error:
        raise StorageError(
            f"{database}: cannot be read as the index of CliMetLab's cache ({error}); "
            "give --data-dir"
        ) from error
    return {
        args["url"]: path
        for path, args in entries
        if isinstance(args, dict) and "url" in args and not args.get("parts")
    }


def _readable_file(path: str | Path) -> bool:
    """Return whether a file is there; raise StorageError if something is that cannot be read."""
    # Text, not a Path, of which there may be thousands that are not there.
    is_link = False
    try:
        mode = os.lstat(path).st_mode
        if is_link := stat.S_ISLNK(mode):
            mode = Path(path).stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        if is_link:
            raise StorageError(f"{path}: is a link to a file that is not there; mend it") from None
        return False
    except OSError as error:
        raise StorageError(f"{path}: cannot be reached ({error.strerror})") from error
    if not stat.S_ISREG(mode):
        raise StorageError(f"{path}: expected a file, found a folder or device; move it away")
    if not os.access(path, os.R_OK):
        raise StorageError(f"{path}: is there but may not be read; give yourself read permission")
    return True
