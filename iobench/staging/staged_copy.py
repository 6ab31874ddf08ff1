"""What a staged copy says of itself, ``stage.json`` beside its files."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec.structs import replace

from iobench.errors import StorageError
from iobench.files.atomic import write_atomically
from iobench.json_files import parse_json, read_fields, read_small_file
from iobench.stores.manifest import CHECKSUM, checked_json
from iobench.stores.places import STAGED_NAME, Item, mark_of, remove_item

if TYPE_CHECKING:
    from collections.abc import Iterable

LAYOUT: Final = 1
NOT_KEPT: Final = frozenset({"path", "was_there"})


class StagedFile(msgspec.Struct, frozen=True):
    """One file of a copy."""

    name: str  # its path in the copy
    nbytes: int
    # of what it was copied from: its checksum where that was known, else when it was modified
    version: str
    crc32c: int = -1  # of its bytes, as they were read
    modified: str = ""  # when the copy was written, in ns as its file system has it


class StagedCopy(msgspec.Struct, frozen=True):
    """A copy, as its ``stage.json`` has it."""

    source: str  # what was copied, without secrets
    kind: str
    state: str
    files: tuple[StagedFile, ...]
    nbytes: int  # of all files
    # SHA-256 of names, sizes and checksums of all files; ``""`` until it is complete
    digest: str = ""
    # what staging copied, and how long that took with all it waited for: of an interrupted one the
    # last go, which kept what was there
    copied_nbytes: int = 0
    seconds: float = 0.0
    job: str = ""  # who compared its bytes last: the processes of one job need not do so again
    path: Path = Path()  # where it is; not in the file
    # whether it was there whole, so that nothing was copied; not in the file either
    was_there: bool = False

    @property
    def bytes_per_s(self) -> float | None:
        """How fast it was copied; None of one that needed no copying."""
        return self.copied_nbytes / self.seconds if self.copied_nbytes and self.seconds else None

    def to_dict(self) -> dict[str, Any]:
        """Return what it says, JSON-ready, but for its files."""
        values = {**msgspec.structs.asdict(self), "bytes_per_s": self.bytes_per_s}
        return {name: values[name] for name in values if name not in NOT_KEPT | {"files"}}


def digest_of(files: Iterable[StagedFile]) -> str:
    """Return one digest of names, sizes and checksums."""
    told = [[each.name, each.nbytes, each.crc32c] for each in files]
    return sha256(json.dumps(told).encode()).hexdigest()


def staged_copy(path: Path | str) -> StagedCopy | None:
    """Return what the copy in a folder says of itself; None where there is none, or it is damaged.

    Its state may be ``"copying"``. Nothing is read of its files.
    """
    folder = Path(path)
    try:
        data = read_small_file(folder / STAGED_NAME)
        values = parse_json(data)
        values.pop(CHECKSUM)
        if checked_json(values) != data or values.pop("layout") != LAYOUT:
            return None
        for name in NOT_KEPT:
            values.pop(name, None)
        return replace(read_fields(StagedCopy, values), path=folder)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def write_copy(copy: StagedCopy) -> None:
    """Write what a copy says of itself."""
    values = {
        "layout": LAYOUT,
        **copy.to_dict(),
        "files": [msgspec.structs.asdict(each) for each in copy.files],
    }
    write_atomically(copy.path / STAGED_NAME, checked_json(values))


def remove_staged(path: Path | str) -> None:
    """Remove a copy that `stage` made, unless somebody writes or uses it."""
    folder = Path(path)
    kind, title = mark_of(folder)
    if kind != "staged":
        raise StorageError(f"{folder} is no copy that iobench staged; remove it yourself")
    remove_item(Item(folder, kind, title, 0))
