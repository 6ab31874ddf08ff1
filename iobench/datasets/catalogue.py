"""What was found out about source files, kept from one start to the next.

A file is known by its path, size, time of change and inode (behind a URL: its ETag), and by how it
was inspected. What is missing, damaged or out of date is found out anew. Nothing is written beside
the data.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import secrets
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

import msgspec

from iobench.cpus import available_cpus
from iobench.datasets.catalogue_files import (
    DIGEST_NBYTES,
    Entry,
    open_parts,
    write_part,
)
from iobench.datasets.contract import Progress, no_progress
from iobench.datasets.plain_values import Kinds, describe_kinds, pack_value, unpack_value
from iobench.datasets.setup_processes import Advance, run_jobs, stopwatch
from iobench.files.open_files import open_files
from iobench.files.urls import URL
from iobench.recording.clocks import SYSTEM_CLOCK

if TYPE_CHECKING:
    from pathlib import Path

    from iobench.datasets.plain_values import Packed

Found = TypeVar("Found")

YOUNG_NS: Final = 2 * 10**9
"""A file changed so lately may change again within one tick of its file system's clock."""
TRIAL_S: Final = 0.5
WORTH_S: Final = 2.0
"""Processes take about a second to start: files are inspected in them if so much is left."""
FILES_PER_JOB: Final = 16
WRITE_S: Final = 30.0
WRITE_NBYTES: Final = 64 << 20
"""What was found out is written so often, so that little is lost if the process is killed."""


class Inspection(msgspec.Struct, Generic[Found], frozen=True):
    """How something is found out about a file."""

    # unlike any other's. Whatever the outcome depends on besides the file is part of it, and a
    # number that changes with the code
    name: str
    # returns what there is to know of a file. May call its second argument with bytes done
    inspect: Callable[[Path, Advance], Found]
    # the structs that its outcomes are made of, besides numbers, texts, tuples, mappings by text,
    # arrays and the file's path
    kinds: Kinds
    # whether it is picklable and worth processes where many files take seconds
    in_processes: bool = True


class Catalogued(NamedTuple, Generic[Found]):
    """What there is to know of each file, and of how many it was found out now."""

    found: list[Found]
    n_new: int


def catalogued(
    files: Sequence[Path],
    inspection: Inspection[Found],
    *,
    cache_dir: Path,
    progress: Progress = no_progress,
) -> Catalogued[Found]:
    """Return what there is to know of each file: as kept, else found out now and kept."""
    catalogue = _Catalogue(inspection, cache_dir)
    sources = catalogue.sources(files)
    total = sum(source.weight for source in sources)
    done = 0

    def advance(nbytes: int) -> None:
        nonlocal done
        done += nbytes
        progress(done, total)

    found = catalogue.known(sources)
    missing = [number for number in range(len(sources)) if number not in found]
    advance(sum(source.weight for number, source in enumerate(sources) if number in found))
    try:
        for number, (value, packed) in _inspected(sources, missing, inspection, advance):
            found[number] = value
            catalogue.keep(sources[number], value, packed)
    finally:
        catalogue.write()
    return Catalogued([found[number] for number in range(len(sources))], len(missing))


class _Source(msgspec.Struct, frozen=True):
    """A file: ``state`` is None where nobody could tell whether it has changed."""

    path: Path
    key: bytes
    state: bytes | None
    is_young: bool
    weight: int
    identity: tuple[int, int] | None


class _Catalogue(Generic[Found]):
    """What is kept of one inspection."""

    def __init__(self, inspection: Inspection[Found], folder: Path) -> None:
        self.inspection, self.folder = inspection, folder
        self.about = json.dumps([inspection.name, describe_kinds(inspection.kinds)]).encode()
        self.new: list[Entry] = []
        self.new_nbytes = 0
        self.watch = stopwatch()

    def sources(self, files: Sequence[Path]) -> list[_Source]:
        """Return the files as they are now."""
        whole = functools.cache(lambda folder: os.fsencode(folder.resolve()))
        found = [self._source(path, whole) for path in files]
        # What is learnt holds for the files as they are now: who reads another one is told so.
        open_files.expect({str(each.path): each.identity for each in found if each.identity})
        return found

    def _source(self, path: Path, whole: Callable[[Path], bytes]) -> _Source:
        # A link is known by its own name: its state is that of the file it leads to.
        remote = isinstance(path, URL)
        named = str(path).encode() if remote else whole(path.parent) + b"/" + os.fsencode(path.name)
        key = _digest(self.about + b"\0" + named)
        state, is_young, nbytes, identity = _state(path)
        return _Source(path, key, state, is_young, max(1, nbytes), identity)

    def known(self, sources: Sequence[_Source]) -> dict[int, Found]:
        """Return what is kept of files, by their number."""
        found = {}
        with open_parts(self.folder) as parts:
            for number, source in enumerate(sources):
                entry = parts.find(source.key, source.state) if source.state else None
                if entry is not None:
                    with suppress(ValueError):
                        found[number] = unpack_value(
                            (entry.text, entry.content), self.inspection.kinds, source.path
                        )
        return found

    def keep(self, source: _Source, value: Found, packed: Packed | None) -> None:
        """Keep what was found out, if the file is still as it was before.

        One behind a URL is known by what it was when it was looked up: inspecting it looks again.
        """
        if source.state is None or source.is_young:
            return
        state, is_young, _, _ = _state(source.path)
        if state != source.state or is_young:
            return
        if packed is None:
            packed = _packed(value, self.inspection, source.path)
        if packed is None:
            return
        self.new.append(Entry(source.key, source.state, SYSTEM_CLOCK.wall_ns(), *packed))
        self.new_nbytes += len(packed[1])
        if self.watch() > WRITE_S or self.new_nbytes > WRITE_NBYTES:
            self.write()

    def write(self) -> None:
        """Write what is new; where that cannot be, it has served this call."""
        if self.new:
            with suppress(OSError):  # a StorageError, or the folder was removed meanwhile
                write_part(self.folder, self.new, name=secrets.token_hex(8))
        self.new, self.new_nbytes, self.watch = [], 0, stopwatch()


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=DIGEST_NBYTES).digest()


def _state(path: Path) -> tuple[bytes | None, bool, int, tuple[int, int] | None]:
    """Return what changes when a file is written anew, whether that was just now, and its size.

    And, of a file of this machine, what `OpenFiles.expect` is told.
    """
    try:
        told = path.stat()
    except OSError:
        return None, False, 0, None  # who reads it says why
    if isinstance(path, URL):
        identity = None
        version: list[int | str] = [told.etag or told.st_mtime_ns]  # type: ignore[attr-defined]
        is_young, is_known = False, told.kind == "file" and version != [0]  # type: ignore[attr-defined]
    else:
        identity = told.st_size, told.st_mtime_ns
        version = [told.st_mtime_ns, told.st_ino]
        is_young = abs(SYSTEM_CLOCK.wall_ns() - told.st_mtime_ns) < YOUNG_NS
        is_known = stat.S_ISREG(told.st_mode)
    state = _digest(json.dumps([told.st_size, *version]).encode()) if is_known else None
    return state, is_young, told.st_size, identity


_Outcome = tuple[Found, "Packed | None"]


def _inspected(
    sources: Sequence[_Source],
    missing: Sequence[int],
    inspection: Inspection[Found],
    advance: Advance,
) -> Iterator[tuple[int, _Outcome[Found]]]:
    """Yield (number, what was found out, and as it is kept) of files, in any order."""
    watch = stopwatch()
    for place, number in enumerate(missing):
        yield number, (_inspect(sources[number], inspection, advance), None)
        rest = missing[place + 1 :]
        left_s = watch() / (place + 1) * len(rest)
        if inspection.in_processes and watch() > TRIAL_S and left_s > WORTH_S:
            yield from _in_processes(sources, rest, inspection, advance)
            return


def _in_processes(
    sources: Sequence[_Source], rest: Sequence[int], inspection: Inspection[Found], advance: Advance
) -> Iterator[tuple[int, _Outcome[Found]]]:
    length = max(1, min(FILES_PER_JOB, len(rest) // (4 * available_cpus())))
    shares = [rest[start : start + length] for start in range(0, len(rest), length)]
    jobs = [(inspection, [sources[number] for number in share]) for share in shares]
    done = 0

    def move(so_far: int, _: int) -> None:
        nonlocal done
        advance(so_far - done)
        done = so_far

    for job, outcomes in run_jobs(_inspect_share, jobs, progress=move):
        for number, (value, packed) in zip(shares[job], outcomes, strict=True):
            if packed is not None:
                value = unpack_value(packed, inspection.kinds, sources[number].path)
            yield number, (value, packed)


def _inspect_share(
    job: tuple[Inspection[Any], Sequence[_Source]], advance: Advance
) -> list[tuple[Any, Packed | None]]:
    """Inspect files in a process of their own: what can be kept comes back as it is kept."""
    inspection, sources = job
    outcomes = []
    for source in sources:
        value = _inspect(source, inspection, advance)
        packed = _packed(value, inspection, source.path)
        outcomes.append((value if packed is None else None, packed))
    return outcomes


def _inspect(source: _Source, inspection: Inspection[Found], advance: Advance) -> Found:
    done = 0

    def moved(nbytes: int) -> None:
        nonlocal done
        done += nbytes
        advance(nbytes)

    value = inspection.inspect(source.path, moved)
    advance(source.weight - done)
    return value


def _packed(value: Any, inspection: Inspection[Any], path: Path) -> Packed | None:
    try:
        return pack_value(value, inspection.kinds, path)
    except TypeError:
        return None  # an attribute that is neither number nor text: it is inspected each time
