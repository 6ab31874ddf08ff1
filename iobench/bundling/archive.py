"""A bundle as one file: the same files make the same bytes. And one of others' read with care."""

from __future__ import annotations

import gzip
import io
import os
import re
import tarfile
import zlib
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from iobench.errors import ProfileError
from iobench.json_files import open_regular, parse_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MANIFEST: Final = "MANIFEST.json"
"""Sorted before all other files of a bundle, so that it says what follows before that is read."""
NAME: Final = re.compile(r"(?:[A-Za-z0-9][\w.+=-]*/)*[A-Za-z0-9][\w.+=-]*", re.ASCII)
HEADER_NBYTES: Final = tarfile.BLOCKSIZE
PIECE_NBYTES: Final = 1 << 20
MANIFEST_NBYTES: Final = 1 << 26
SMALL_NBYTES, MOST_RATIO = 1 << 28, 200
"""So large may all files be together, and so many times the archive's size more."""


def packed(folder: str, files: Mapping[str, bytes]) -> bytes:
    """Return a ``.tar.gz`` of files in one folder, sorted, without times and owners."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, data in sorted(files.items()):
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size, member.mode = len(data), 0o644
            archive.addfile(member, io.BytesIO(data))
    found = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", fileobj=found, mtime=0) as zipped:
        zipped.write(raw.getvalue())
    return found.getvalue()


def unpack(archive: Path, folder: str, into: Path) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Read what `packed` wrote, whoever has changed it since.

    Only plain files are taken, below one folder, under plain names. The manifest stands first and
    says how long each file is: nothing longer is read, nor written.

    Parameters
    ----------
    folder : str
        As it was packed.
    into : Path
        An empty folder of this machine; nothing is written outside.

    Returns
    -------
    manifest : dict
        Its ``files`` are those that are there.
    wrong : tuple of str
        What is not as the manifest says, a line each.

    Raises
    ------
    ProfileError
        If it cannot be read, is cut short, or holds what no bundle does.
    """
    try:
        with os.fdopen(open_regular(archive), "rb") as raw, gzip.open(raw) as stream:
            limit = SMALL_NBYTES + MOST_RATIO * os.fstat(raw.fileno()).st_size
            members = _members(stream, folder, limit)
            manifest, stated = _manifest(stream, next(members, ("", 0)))
            found: set[str] = set()
            wrong = []
            for name, nbytes in members:
                if name in found or name == MANIFEST:
                    raise ValueError(f"holds {name} twice")
                found.add(name)
                length, digest = stated.get(name, (None, ""))
                if length == nbytes:
                    path = into / name
                    path.parent.mkdir(parents=True, exist_ok=True)
                    with path.open("xb") as file:
                        same = _copied(stream, nbytes, file) == digest
                    said = "" if same else "was changed since it was packed (its SHA-256 differs)"
                else:
                    _copied(stream, nbytes)
                    known = "not in its manifest" if length is None else f"{length} by its manifest"
                    said = f"has {nbytes} bytes, and is {known}"
                wrong += [f"{name}: {said}"] * bool(said)
            wrong += [f"{name}: is missing" for name in stated if name not in found]
    except (EOFError, zlib.error) as error:
        raise ProfileError(f"{archive}: is cut short or damaged ({error})") from error
    except (tarfile.TarError, ValueError) as error:
        raise ProfileError(
            f"{archive}: {error}; expected an archive as 'iobench suite pack' writes it"
        ) from error
    except OSError as error:
        raise ProfileError(
            f"{archive}: cannot be read or unpacked ({error.strerror or error})"
        ) from error
    return manifest, tuple(wrong)


def _members(stream: io.BufferedIOBase, folder: str, limit: int) -> Iterator[tuple[str, int]]:
    """Yield name and length of each file, whose bytes are next in the stream.

    Nothing but the header of a file is understood: a link, a device or a longer name is refused.
    """
    total = 0
    while True:
        header = _exactly(stream, HEADER_NBYTES)
        if not any(header):
            break
        member = tarfile.TarInfo.frombuf(header, "ascii", "strict")
        above, _, name = member.name.partition("/")
        if member.type != tarfile.REGTYPE or above != folder or not NAME.fullmatch(name):
            raise ValueError(f"holds {member.name!a}, which is no file of {folder}/")
        total += member.size
        if not 0 <= member.size <= total <= limit:
            raise ValueError(f"holds {total} bytes, far more than an archive of its size can")
        yield name, member.size
        if any(_exactly(stream, -member.size % HEADER_NBYTES)):
            raise ValueError(f"holds something between {name} and the next file")
    rest = stream.read(tarfile.RECORDSIZE)
    if any(rest) or stream.read(1):
        raise ValueError("continues after its end")


def _manifest(
    stream: io.BufferedIOBase, first: tuple[str, int]
) -> tuple[dict[str, Any], dict[str, tuple[int, str]]]:
    """Return the manifest, and of each file how long it is and its SHA-256."""
    name, nbytes = first
    if name != MANIFEST or nbytes > MANIFEST_NBYTES:
        raise ValueError(f"does not begin with {MANIFEST}")
    manifest = parse_json(_exactly(stream, nbytes))
    try:
        stated = {
            str(file): (int(each["nbytes"]), str(each["sha256"]))
            for file, each in manifest["files"].items()
        }
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError):
        raise ValueError(f"{MANIFEST} does not say what files there are") from None
    return manifest, stated


def _copied(stream: io.BufferedIOBase, nbytes: int, file: BinaryIO | None = None) -> str:
    """Copy so many bytes, or pass over them, and return their SHA-256."""
    digest = sha256()
    while nbytes:
        piece = _exactly(stream, min(nbytes, PIECE_NBYTES))
        digest.update(piece)
        nbytes -= len(piece)
        if file is not None:
            file.write(piece)
    return digest.hexdigest()


def _exactly(stream: io.BufferedIOBase, nbytes: int) -> bytes:
    data = stream.read(nbytes)
    if len(data) < nbytes:
        raise EOFError("it ends within a file")
    return data
