"""Places of a store that are addresses: what the stores use of a `pathlib.Path`, and no more."""

from __future__ import annotations

import errno
import io
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from iobench.remote import is_url, protocol_of, shown_url
from iobench.stores.remote.objects import ObjectStat, objects_at
from iobench.stores.remote.reading import RangeReader

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from iobench.stores.remote.objects import Objects

    # Signatures of stores say Path; to a type checker this is one.
    _Base = Path
else:
    # At run time it is none: what is missing here fails, and never touches the local disk.
    _Base = object

__all__ = ["StoreAddress", "as_place"]

LOCAL_PROTOCOLS = {"file", "local"}


def as_place(place: str | Path) -> Path:
    """Return where a store is: a path of this machine, or a `StoreAddress` for an address."""
    if not isinstance(place, str):
        return place
    if protocol_of(place) in LOCAL_PROTOCOLS:
        return Path("/", place.partition("://")[2])
    return StoreAddress(place) if is_url(place) else Path(place)


class StoreAddress(_Base):
    """An address with the face of a path. Immutable, hashable, picklable; opens nothing by itself.

    There are no folders: one exists as long as there is something in it.

    Parameters
    ----------
    url : str
        Such as ``s3://bucket/prefix``.
    listing : mapping of str to ObjectStat, optional
        What is known to lie below, by fsspec's path. Paths below share it, copies through pickle
        do without.
    """

    __slots__ = ("_listing", "url")

    def __init__(self, url: str, listing: Mapping[str, ObjectStat] | None = None) -> None:
        scheme, separator, rest = url.partition("://")
        self.url = f"{scheme}{separator}{rest.strip('/')}"
        self._listing = listing

    def __reduce__(self) -> tuple[Any, ...]:
        return StoreAddress, (self.url,)

    def __str__(self) -> str:
        return shown_url(self.url)

    def __repr__(self) -> str:
        return f"StoreAddress({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StoreAddress) and self.url == other.url

    def __hash__(self) -> int:
        return hash(self.url)

    def __lt__(self, other: Any) -> bool:
        return bool(self.url < other.url)

    def __truediv__(self, name: Any) -> StoreAddress:
        return StoreAddress(f"{self.url}/{name}", self._listing)

    @property
    def name(self) -> str:
        """The last part."""
        return self.url.rpartition("/")[2]

    @property
    def parent(self) -> StoreAddress:
        """The address without its last part; that of a bucket is itself."""
        above, _, _ = self.url.rpartition("/")
        return self if above.endswith("/") else StoreAddress(above, self._listing)

    def absolute(self) -> StoreAddress:
        """Return it as it is."""
        return self

    def relative_to(self, other: Any, *_: Any, **__: Any) -> Any:  # type: ignore[override]
        """Return the path from another address to this one; raise ValueError if it is not below."""
        base = f"{other.url}/"
        if not self.url.startswith(base):
            raise ValueError(f"{self} is not below {other}")
        return PurePosixPath(self.url.removeprefix(base))

    def is_relative_to(self, *other: Any) -> bool:
        """Whether it is below another address."""
        return isinstance(other[0], StoreAddress) and self.url.startswith(f"{other[0].url}/")

    def with_listing(self) -> StoreAddress:
        """Return it with all that is below listed once, so that no size has to be asked for."""
        objects, path = self._there()
        return StoreAddress(self.url, objects.find(f"{path}/"))

    def stat(self, **_: Any) -> Any:
        """Return size and time, as `ObjectStat`; raise FileNotFoundError if there is no object."""
        objects, path = self._there()
        if self._listing is None:
            return objects.stat(path)
        if path not in self._listing:
            raise FileNotFoundError(errno.ENOENT, "no such object", str(self))
        return self._listing[path]

    def exists(self, **_: Any) -> bool:
        """Whether there is an object, or something below."""
        return self.is_file() or self.is_dir()

    def is_file(self, **_: Any) -> bool:
        """Whether there is an object."""
        try:
            self.stat()
        except FileNotFoundError:
            return False
        return True

    def is_dir(self, **_: Any) -> bool:
        """Whether there is something below."""
        objects, path = self._there()
        return objects.any_below(f"{path}/")

    def iterdir(self) -> Generator[StoreAddress, None, None]:
        """Yield what is directly below."""
        for name in dict.fromkeys(found.partition("/")[0] for found in self.below()):
            yield self / name

    def rglob(self, pattern: str) -> Generator[StoreAddress, None, None]:
        """Yield all objects below (``*``), their sizes known."""
        assert pattern == "*"
        known = self if self._listing is not None else self.with_listing()
        for name in self.below():
            yield known / name

    def below(self) -> list[str]:
        """Return the paths from here of all objects below, sorted."""
        objects, path = self._there()
        return [found.removeprefix(f"{path}/") for found in objects.find(f"{path}/")]

    def mkdir(self, mode: int = 0, parents: bool = False, exist_ok: bool = False) -> None:
        """Do nothing; raise FileNotFoundError if the folder it would be in has gone."""
        if not parents and not self.parent.is_dir():
            raise FileNotFoundError(errno.ENOENT, "no such folder", str(self.parent))

    def rmdir(self) -> None:
        """Do nothing: a folder goes with the last of what is in it."""

    def open(self, mode: str = "r", *_: Any, **__: Any) -> Any:
        """Return a reader of the object's bytes, which asks for stretches of them."""
        if mode != "rb":
            raise io.UnsupportedOperation(f"{self}: opened for reading bytes only")
        objects, path = self._there()
        return RangeReader(objects, path, self.stat().st_size)

    def read_bytes(self) -> bytes:
        """Return all bytes of the object; raise FileNotFoundError if there is none."""
        objects, path = self._there()
        return objects.read(path)

    def write_bytes(self, data: Any) -> int:
        """Write the object, which appears as a whole; return its size."""
        objects, path = self._there()
        objects.put(path, data)
        return len(data)

    def unlink(self, missing_ok: bool = False) -> None:
        """Remove the object, if it is there."""
        objects, path = self._there()
        objects.remove([path])

    def replace(self, target: Any) -> Any:
        """Make a finished file of a room (`staging`) appear at ``target``."""
        from iobench.stores.remote.staging import take_sealed

        take_sealed(self).complete()
        return target

    def _there(self) -> tuple[Objects, str]:
        return objects_at(self.url)
