"""Stand-ins on disk: where they lie, that they are whole, and that nothing foreign is overwritten.

A journal (``stand-in.journal``) lists each file before it takes its final name; the manifest
(``stand-in.json``) replaces it when all are there. Without a manifest a stand-in is unfinished,
and the next run goes on where the last one ended.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iobench.datasets.contract import Progress, Synthesizer, no_progress
from iobench.datasets.locate import JOURNAL, MANIFEST, FileLocator
from iobench.datasets.setup_processes import Advance, run_jobs
from iobench.errors import MissingFileError, OptionError, StorageError
from iobench.files.atomic import storage_errors, write_atomically
from iobench.files.claims import claim
from iobench.files.crc32c import crc32c_of_file
from iobench.frozen import frozen
from iobench.json_files import parse_json, read_json, read_small_file
from iobench.stores.places import make_item

if TYPE_CHECKING:
    from iobench.datasets.contract import Dataset
    from iobench.datasets.patterns import FilePattern
    from iobench.stores.contract import Notice

MANIFEST_VERSION = 1
SMALL_NBYTES = 64 << 20
"""Less is written sooner by this process than by ones that must start first."""
SPARE_NBYTES = 64 << 20
"""Left free on the disk beside what a stand-in takes: indexes, the normalisation, a run."""


@frozen
class PlannedFile:
    """One file of a stand-in.

    Parameters
    ----------
    name : str
        Path below the root, with ``/``.
    nbytes : int
        About the size it will have; the unit of progress.
    write : callable
        ``write(path, advance)`` creates the file; picklable. Calls ``advance(nbytes)`` as it goes.
    """

    name: str
    nbytes: int
    write: Callable[[Path, Advance], None]


@frozen
class FinishedFile:
    """One file of a stand-in that is written: path below the root, size, CRC-32C."""

    name: str
    nbytes: int
    crc32c: int

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON-ready values."""
        return {"name": self.name, "nbytes": self.nbytes, "crc32c": self.crc32c}


@frozen
class StandInIdentity:
    """What two stand-ins must share to be the same."""

    dataset: str
    version: int
    seed: int
    scale: float | None
    tiny: bool

    @classmethod
    def of(
        cls, dataset: Synthesizer, *, seed: int = 0, scale: float | None = None, tiny: bool = False
    ) -> StandInIdentity:
        """Return that of a dataset's stand-in of a size; see `Synthesizer.synthesize`."""
        name: str = getattr(dataset, "stand_in_name", dataset.name)
        return cls(name, dataset.synthesis_version, seed, scale, tiny)

    def root(self, place: Path) -> Path:
        """Return where it lies below a folder of stores."""
        size = "tiny" if self.tiny else "default" if self.scale is None else f"scale-{self.scale:g}"
        return place / "stand-ins" / f"{self.dataset}-v{self.version}-{size}-seed{self.seed}"

    def header(self) -> dict[str, Any]:
        """Return it as its manifest and journal have it."""
        return {"stand_in": MANIFEST_VERSION, **asdict(self)}


def locate_files(
    dataset: Dataset,
    *,
    store_root: Path,
    cache_dir: Path,
    data_dir: Path | None = None,
    pattern: FilePattern | None = None,
    seed: int = 0,
    scale: float | None = None,
    tiny: bool = False,
    progress: Progress = no_progress,
    notice: Notice | None = None,
) -> tuple[list[Path], FileLocator]:
    """Return the dataset's files and the locator that found them, of a stand-in if need be.

    A stand-in is made only where none of the real files is at hand, or where ``scale`` or
    ``tiny`` asks for one; real files and a stand-in's are never mixed.

    Raises
    ------
    MissingFileError
        If some of the real files are at hand but not all that are needed.
    OptionError
        If ``data_dir`` or ``pattern`` is given together with ``scale`` or ``tiny``.
    """
    wants_stand_in = tiny or scale is not None
    own = f"--files {pattern.text}" if pattern else f"--data-dir {data_dir}" if data_dir else ""
    if own and wants_stand_in:
        raise OptionError(
            f"{own}: holds files of your own, --tiny and --scale ask for a stand-in; give one of "
            "them"
        )
    if not wants_stand_in:
        real = FileLocator(
            data_dir=data_dir, pattern=pattern, cache_dir=cache_dir, progress=progress
        )
        try:
            return dataset.files(real), real
        except MissingFileError:
            if own or real.n_found or not isinstance(dataset, Synthesizer):
                raise
    if not isinstance(dataset, Synthesizer):
        raise OptionError(f"{dataset.name}: has no stand-in; leave --tiny and --scale away")
    root = StandInIdentity.of(dataset, seed=seed, scale=scale, tiny=tiny).root(store_root)
    ensure_stand_in(
        dataset, root, seed=seed, scale=scale, tiny=tiny, progress=progress, notice=notice
    )
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
    notice: Notice | None = None,
) -> Path:
    """Return ``root`` with the dataset's finished stand-in below it, written if need be.

    Parameters
    ----------
    dataset : Synthesizer
        Writes the files.
    root : Path
        Top of the mirror layout; see `StandInIdentity.root`.
    seed, scale, tiny
        As in `Synthesizer.synthesize`.
    progress : Progress
        Called with (bytes written, bytes to write).
    notice : callable, optional
        Called with a line that names who else is writing this stand-in, before waiting for them.

    Raises
    ------
    OptionError
        If scale or seed are out of range, or both ``scale`` and ``tiny`` are given.
    StorageError
        If the disk is too small (before anything is written) or refuses, or if a file of the same
        name that iobench did not write is in the way.
    """
    if scale is not None and not 0 < scale <= 1:
        raise OptionError(f"--scale {scale:g}: expected a share above 0 and up to 1")
    if tiny and scale is not None:
        raise OptionError(f"--tiny and --scale {scale:g} are two sizes: give one of them")
    if seed < 0:
        raise OptionError(f"--seed {seed}: expected 0 or more")
    identity = StandInIdentity.of(dataset, seed=seed, scale=scale, tiny=tiny)
    if _finished(root, identity):
        return root
    make_item(root, kind="stand-in", title=f"stand-in of {dataset.name}")
    with claim(root, notice=notice):
        if _finished(root, identity):  # another process made it while this one waited
            return root
        _check_free_space(root, _missing_nbytes(dataset, root, identity), dataset.name)
        done = _read_finished(root, identity)
        _open_journal(root, identity, done)
        paths = dataset.synthesize(root, scale=scale, tiny=tiny, seed=seed, progress=progress)
        _write_manifest(root, identity, paths)
    return root


def write_planned_files(
    root: Path,
    files: Sequence[PlannedFile],
    *,
    identity: StandInIdentity,
    processes: int | None = None,
    progress: Progress = no_progress,
) -> list[Path]:
    """Write the files of a stand-in that are not there yet, several at once; return all of them.

    Each is written under a temporary name, flushed, entered into the journal and renamed.

    Parameters
    ----------
    root : Path
        Top of the stand-in.
    files : sequence of PlannedFile
        All files of the stand-in; those the journal lists as written are kept.
    identity : StandInIdentity
        Of the stand-in.
    processes : int, optional
        By default the usable CPUs, and one for what is written sooner than processes start.
    progress : Progress
        Called with (bytes written, bytes to write).

    Raises
    ------
    StorageError
        If the disk refuses, or a file that iobench did not write has one of the names.
    """
    done = _read_finished(root, identity)
    if not (root / JOURNAL).exists():
        _open_journal(root, identity, done)
    written = {file.name: file.nbytes for file in done}
    for file in files:
        _check_not_foreign(root / file.name, written.get(file.name))
    missing = [file for file in files if not (root / file.name).exists()]
    total = sum(file.nbytes for file in missing)
    if processes is None and total < SMALL_NBYTES:
        processes = 1
    jobs = [(root, file) for file in missing]
    with (root / JOURNAL).open("a") as journal:
        for number, finished in run_jobs(
            _write_file, jobs, processes=processes, progress=progress, total=total
        ):
            journal.write(json.dumps(finished.to_dict()) + "\n")
            journal.flush()
            os.fsync(journal.fileno())
            path = root / missing[number].name
            _temporary(path).replace(path)
    return [root / file.name for file in files]


def _write_file(job: tuple[Path, PlannedFile], advance: Advance) -> FinishedFile:
    root, file = job
    path = _temporary(root / file.name)
    with storage_errors(path, resumable=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            file.write(path, advance)
            with path.open("rb+") as stream:
                os.fsync(stream.fileno())
        except OSError:
            path.unlink(missing_ok=True)  # gives a full disk its room back
            raise
    return _finished_file(path, file.name)


def _finished_file(path: Path, name: str) -> FinishedFile:
    return FinishedFile(name, path.stat().st_size, crc32c_of_file(path))


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.partial")


def _finished(root: Path, identity: StandInIdentity) -> bool:
    """Return whether a manifest says all is there and all is there."""
    if not (root / MANIFEST).exists():
        return False
    files = _read_finished(root, identity)
    return all(_size(root / file.name) == file.nbytes for file in files)


def _read_finished(root: Path, identity: StandInIdentity) -> list[FinishedFile]:
    """Return the files a manifest or journal lists; refuse those of another stand-in."""
    source = next((root / name for name in (MANIFEST, JOURNAL) if (root / name).exists()), None)
    if source is None:
        return []
    try:
        if source.name == MANIFEST:
            header = read_json(source)
            rows = header.pop("files")
        else:
            # A crash can cut the last line short; the file it names is then still temporary.
            lines = read_small_file(source).decode().splitlines(keepends=True)
            header, *rows = [parse_json(line) for line in lines if line.endswith("\n")] or [{}]
        files = [FinishedFile(**row) for row in rows]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise StorageError(
            f"{source}: is not iobench's list of a stand-in ({error}); delete the folder"
        ) from error
    if header and header != identity.header():
        raise StorageError(
            f"{root}: holds another stand-in ({_described(header)}) than asked for "
            f"({_described(identity.header())}); delete it or give another folder"
        )
    return files


def _described(identity: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in identity.items())


def _open_journal(root: Path, identity: StandInIdentity, done: Sequence[FinishedFile]) -> None:
    rows = [identity.header(), *(file.to_dict() for file in done)]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    write_atomically(root / JOURNAL, text.encode())
    (root / MANIFEST).unlink(missing_ok=True)


def _write_manifest(root: Path, identity: StandInIdentity, paths: Sequence[Path]) -> None:
    known = {file.name: file for file in _read_finished(root, identity)}
    names = [path.relative_to(root).as_posix() for path in paths]
    files = [known.get(name) or _finished_file(root / name, name) for name in names]
    manifest = {**identity.header(), "files": [file.to_dict() for file in files]}
    write_atomically(root / MANIFEST, (json.dumps(manifest, indent=1) + "\n").encode())
    (root / JOURNAL).unlink()


def _check_not_foreign(path: Path, written_nbytes: int | None) -> None:
    if path.exists() and written_nbytes != path.stat().st_size:
        raise StorageError(
            f"{path}: is there but is not what iobench wrote; move it away or give another folder"
        )


def _missing_nbytes(dataset: Synthesizer, root: Path, identity: StandInIdentity) -> int:
    """Return the bytes still to be written."""
    sizes = (_size(root / file.name) for file in _read_finished(root, identity))
    present = sum(size for size in sizes if size is not None)
    return dataset.synthesis_nbytes(scale=identity.scale, tiny=identity.tiny) - present


def _check_free_space(root: Path, needed: int, name: str) -> None:
    existing = next(folder for folder in (root, *root.absolute().parents) if folder.exists())
    free = shutil.disk_usage(existing).free
    if needed + SPARE_NBYTES > free:
        raise StorageError(
            f"{existing}: the stand-in of {name} needs {needed / 1e9:.2f} GB and "
            f"{SPARE_NBYTES / 1e9:.2f} GB to spare, {free / 1e9:.2f} GB are free; nothing was "
            "written: give another folder with --store-dir, or --tiny"
        )


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None
