"""URLs of files and stores (``s3://bucket/x.nc``): one type, whose text never shows a secret.

What a user names is a path of this machine or a `URL`, made by `as_path`; both have the same face,
and all others hold one of them and ask it for its size, its name or what is in the folder.
"""

from __future__ import annotations

import errno
import hashlib
import io
import re
import shutil
from collections.abc import Generator, Mapping, Sequence
from glob import has_magic
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any, Final, cast

from iobench.files import objects
from iobench.files.atomic import TEMPORARY_SUFFIX, AtomicFile
from iobench.files.objects import WEB, WEB_STORES, ObjectStat, RemoteFile
from iobench.masking import mask_urls, note_secrets, shown_url

if TYPE_CHECKING:
    import os

    # Signatures say Path; to a type checker this is one.
    _Base = Path
else:
    # At run time it is none: what is missing here fails, and never asks the local disk.
    _Base = object

_BEGINNING: Final = re.compile(r"((?:[A-Za-z][A-Za-z0-9+.-]*::)*[A-Za-z][A-Za-z0-9+.-]*)://")
"""Several protocols are a chain, which is refused when it is asked for."""
_WILDCARDS: Final = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}


def is_url(text: object) -> bool:
    """Tell whether this is a URL, or a text that is one, and not a path of this machine."""
    return isinstance(text, URL) or (isinstance(text, str) and _BEGINNING.match(text) is not None)


def as_path(text: str | os.PathLike[str]) -> Path:
    """Return the path that a text is, or the `URL`; local files may be spelled as URLs."""
    if not isinstance(text, str) or not is_url(text):
        return text if isinstance(text, URL) else Path(text)
    url = URL(text)
    if url.protocol in ("file", "local"):
        return Path("/", text.partition("://")[2])
    note_secrets([text])
    return url


def range_file(path: Path) -> str:
    """Return a path as ranges of its bytes name it: a text, or the `URL` itself."""
    return cast(str, path) if isinstance(path, URL) else str(path)


def file_below(folder: str, name: str) -> str:
    """Return the `range_file` of what lies in a folder that is one itself."""
    return cast(str, folder / name) if isinstance(folder, URL) else f"{folder}/{name}"


class URL(_Base):
    """A URL with the face of a path. Immutable, hashable; opens nothing by itself.

    ``str``, ``repr``, formats and JSON show it without user, password, token and signature.
    `with_secrets` alone gives all of it, to the library that opens it; so does pickle, which
    brings it to processes and nowhere else. There are no folders: one exists as long as there is
    something in it.
    """

    __slots__ = ("_head", "_listing", "_path", "_state", "_tail")

    def __init__(
        self,
        text: str,
        state: ObjectStat | None = None,
        listing: Mapping[str, ObjectStat] | None = None,
    ) -> None:
        begin = _BEGINNING.match(text)
        self._head = begin[0] if begin else ""
        self._path, self._tail = text[len(self._head) :].rstrip("/"), ""
        if self.protocol in WEB:  # elsewhere a question mark is part of a name
            cut = re.search("[?#]|$", text)
            assert cut is not None
            self._path, self._tail = text[len(self._head) : cut.start()], text[cut.start() :]
        self._state, self._listing = state, listing

    def with_secrets(self) -> str:
        """Return all of it, for the library that opens it; never to be shown or kept."""
        return f"{self._head}{self._path}{self._tail}"

    @property
    def protocol(self) -> str:
        """What it begins with, such as ``s3``."""
        return self._head.removesuffix("://").lower()

    @property
    def path(self) -> str:
        """What stands between protocol and query: host or bucket, and the path there."""
        return self._path

    def with_path(self, path: str, state: ObjectStat | None = None) -> URL:
        """Return the URL with another `path`, where that state is, if it is given."""
        url = URL.__new__(URL)
        url._head, url._path, url._tail = self._head, path, self._tail
        url._state, url._listing = state, self._listing
        return url

    def __str__(self) -> str:
        return shown_url(self.with_secrets())

    def __repr__(self) -> str:
        return f"URL({str(self)!r})"

    def __reduce__(self) -> tuple[type[URL], tuple[str, ObjectStat | None]]:
        return URL, (self.with_secrets(), self._state)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, URL) and self.with_secrets() == other.with_secrets()

    def __hash__(self) -> int:
        return hash((self._path, self._head))

    def __lt__(self, other: Any) -> bool:
        return _parts(self) < _parts(other)

    def __gt__(self, other: Any) -> bool:
        return _parts(self) > _parts(other)

    def __truediv__(self, name: Any) -> URL:
        return self.with_path(f"{self._path.rstrip('/')}/{name}".rstrip("/"))

    @property
    def name(self) -> str:
        """The last part of the path."""
        return mask_urls(self._path.rstrip("/").rpartition("/")[2].rpartition("@")[2])

    @property
    def stem(self) -> str:
        """The name without what follows its last dot."""
        return PurePosixPath(self.name).stem

    @property
    def parent(self) -> URL:
        """The URL without its last part; of a bucket or host, the same."""
        above = self._path.rstrip("/").rpartition("/")[0]
        return self.with_path(above) if above else self

    @property
    def parents(self) -> Sequence[URL]:
        """All of them, the nearest first."""
        above = self.parent
        return [] if above == self else [above, *above.parents]

    def relative_to(self, other: Any, *_: Any, **__: Any) -> PurePosixPath:  # type: ignore[override]
        """Return the path from another URL to this one; raise ValueError if it is not below."""
        if not self.is_relative_to(other):
            raise ValueError(f"{self} is not below {other}")
        return PurePosixPath(self._below(other))

    def _below(self, other: URL) -> str:
        return self._path[len(other._path.rstrip("/")) + 1 :]

    def is_relative_to(self, *other: Any) -> bool:
        """Whether it is another URL, or below it."""
        above = other[0]
        return isinstance(above, URL) and (
            (self._head, self._tail) == (above._head, above._tail)
            and f"{self._path}/".startswith(f"{above._path.rstrip('/')}/")
        )

    @property
    def can_list(self) -> bool:
        """Whether what lies below can be asked for: web servers hand out files by their names."""
        return self.protocol not in WEB

    def is_pattern(self) -> bool:
        """Whether its path has wildcards; a question mark begins the query of a web page."""
        return has_magic(self._path)

    def absolute(self) -> URL:
        """Return it: a URL is absolute."""
        return self

    def resolve(self, strict: bool = False) -> URL:
        """Return it: links are not seen through a URL."""
        return self

    def is_symlink(self) -> bool:
        """Return False."""
        return False

    def exists(self, **_: Any) -> bool:
        """Whether there is a file, or something below."""
        return self._kind() != ""

    def is_file(self, **_: Any) -> bool:
        """Whether there is a file."""
        return self._kind() == "file"

    def is_dir(self, **_: Any) -> bool:
        """Whether there is something below."""
        return self._kind() == "directory"

    def _kind(self) -> str:
        state = self._lookup()
        return "" if state is None else state.kind

    def _lookup(self) -> ObjectStat | None:
        if self._state is not None:
            return self._state
        if self._listing is None:
            return objects.states_of([self])[0]
        below = f"{self._path}/"
        is_folder = self._path not in self._listing and any(
            path.startswith(below) for path in self._listing
        )
        return objects.FOLDER if is_folder else self._listing.get(self._path)

    def stat(self, **_: Any) -> Any:
        """Return size, time and kind, as `ObjectStat`."""
        state = self._lookup()
        if state is None:
            raise FileNotFoundError(errno.ENOENT, "no such object", str(self))
        return state

    @property
    def is_looked_up(self) -> bool:
        """Whether it says of itself what it was, and asks nobody."""
        return self._state is not None

    def looked_up(self) -> URL:
        """Return it as it is now: what it says of itself costs no further requests."""
        return self.with_path(self._path, URL(self.with_secrets()).stat())

    def with_listing(self) -> URL:
        """Return it with all that is below listed once, so that no size has to be asked for."""
        below = objects.find_below(self).items()
        listing = {f"{self._path}/{name}": state for name, state in below}
        return URL(self.with_secrets(), listing=listing)

    @property
    def etag(self) -> str:
        """What the server called the version that was looked up; empty where it did not."""
        return "" if self._state is None else self._state.etag

    def version(self) -> str:
        """Return what changes when the file is written anew: its ETag, else when that was."""
        stat = self.stat()
        return str(stat.etag or stat.st_mtime_ns)

    def state_number(self) -> int:
        """Return a number that changes with the file, or with any file in the folder.

        It is made of names, sizes and versions; 52 bits, so that JSON keeps it.
        """
        digest = hashlib.blake2b(digest_size=8)
        for path in [self] if self.is_file() else sorted(self.rglob("*")):
            digest.update(f"{path} {path.stat().st_size} {path.version()}\n".encode())
        return int.from_bytes(digest.digest(), "big") >> 12

    def iterdir(self) -> Generator[URL, None, None]:
        """Yield what is directly below."""
        for name, state in objects.list_folder(self).items():
            yield self.with_path((self / name)._path, state)

    def rglob(self, pattern: str, **_: Any) -> Generator[URL, None, None]:
        """Yield all files below, after one look; ``pattern`` has to be ``"*"``."""
        if pattern != "*":
            raise ValueError(f"{self}: is listed whole, asked for {pattern!r}")
        for name, state in objects.find_below(self).items():
            yield self.with_path((self / name)._path, state)
        if not self.can_list:  # of a store on a web server, what tells all of its arrays
            yield from (each for name in WEB_STORES if (each := self / name).is_file())

    def glob(self, pattern: str, **__: Any) -> Generator[URL, None, None]:
        """Yield what matches a pattern of a path from here; ``**`` is any folders."""
        first, _, rest = pattern.partition("/")
        if "**" in pattern:
            exact = re.compile(glob_expression(pattern))
            yield from (file for file in self.rglob("*") if exact.fullmatch(file._below(self)))
        elif not has_magic(first):
            place = self / first
            yield from place.glob(rest) if rest else ([place] if place.exists() else ())
        else:
            exact = re.compile(glob_expression(first))
            for place in sorted(self.iterdir()):
                if exact.fullmatch(place._path.rpartition("/")[2]) and (not rest or place.is_dir()):
                    yield from place.glob(rest) if rest else [place]

    def mkdir(self, mode: int = 0, parents: bool = False, exist_ok: bool = False) -> None:
        """Do nothing; raise FileNotFoundError if the folder it would be in has gone."""
        if not parents and not self.parent.is_dir():
            raise FileNotFoundError(errno.ENOENT, "no such folder", str(self.parent))

    def open(self, mode: str = "r", *_: Any, **__: Any) -> IO[Any]:  # type: ignore[override]
        """Return a reader of the bytes, which asks for ranges of them."""
        if mode != "rb":
            raise io.UnsupportedOperation(f"{self}: opened for reading bytes only")
        return cast(IO[Any], RemoteFile(self if self.is_looked_up else self.looked_up()))

    def read_bytes(self) -> bytes:
        """Return all bytes; raise FileNotFoundError if there is no such file."""
        (content,) = objects.read_objects([self])
        if content is None:
            raise FileNotFoundError(errno.ENOENT, "no such object", str(self))
        return bytes(content)

    def write_bytes(self, data: Any) -> int:
        """Write the file, which appears as a whole; return its size."""
        objects.put(self, data)
        return len(data)

    def unlink(self, missing_ok: bool = False) -> None:
        """Remove the file, if it is there."""
        objects.remove([self])


def _parts(path: Any) -> list[str]:
    """Return what URLs and paths are ordered by."""
    return (path.with_secrets() if isinstance(path, URL) else str(path)).split("/")


def glob_expression(pattern: str) -> str:
    """Return the regular expression of the paths that a pattern with wildcards stands for."""

    def translated(match: re.Match[str]) -> str:
        if match[0][:1] == "[" and match[0][1:]:
            return match[0].replace("[!", "[^")
        return _WILDCARDS.get(match[0]) or re.escape(match[0])

    return re.sub(r"\[[^]]+\]|\*\*/|\*\*|\*|\?|.", translated, pattern, flags=re.DOTALL)


# -- what is done to files here and elsewhere --------------------------------------------------


def new_file(path: Path, *, folder: Path | None = None) -> AtomicFile | objects.Upload:
    """Return a file that only ``commit`` makes appear; ``folder`` is that of `AtomicFile`."""
    if isinstance(path, URL):
        return objects.Upload(path)
    return AtomicFile(path, resumable=True, folder=folder)


def remove_tree(folder: Path) -> None:
    """Remove a folder and all in it, as far as that can be done."""
    if isinstance(folder, URL):
        objects.remove([*folder.rglob("*")])
    else:
        shutil.rmtree(folder, ignore_errors=True)


def remove_leftovers(store: Path) -> None:
    """Remove what was begun of files of a store and not finished; nobody else is writing it."""
    if not isinstance(store, URL):  # an object appears as a whole
        for folder in (store, *filter(Path.is_dir, store.iterdir())):  # Zarr: one for each array
            for leftover in folder.glob(f".*{TEMPORARY_SUFFIX}"):
                leftover.unlink(missing_ok=True)
