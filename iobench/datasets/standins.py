"""Stand-ins on disk: where they lie, and that they are whole.

Each file appears whole and is never overwritten. The manifest (``stand-in.json``) is there first
and lists no file until all are there; an unfinished stand-in goes on with the files that it lacks.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from iobench.datasets.contract import Progress, Synthesizer, no_progress
from iobench.datasets.locate import MANIFEST, FileLocator, stand_in_manifest
from iobench.datasets.setup_processes import Advance, run_jobs
from iobench.errors import MissingFileError, OptionError, StorageError
from iobench.files.atomic import storage_errors, write_atomically
from iobench.files.locks import locked
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


class PlannedFile(msgspec.Struct, frozen=True):
    """One file of a stand-in: its path below the root, with ``/``, and about its size.

    ``write(path)`` creates the file; picklable.
    """

    name: str
    nbytes: int
    write: Callable[[Path], None]


class StandInIdentity(msgspec.Struct, frozen=True):
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
        """Return it as the manifest has it."""
        return {"stand_in": MANIFEST_VERSION, **msgspec.structs.asdict(self)}


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
        raise OptionError(f"{dataset.name}: has no stand-in; leave out --tiny and --scale")
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

    ``root`` is the top of the mirror layout (`StandInIdentity.root`); ``seed``, ``scale`` and
    ``tiny`` are as in `Synthesizer.synthesize`. ``notice`` is called with a line that names who
    else is writing this stand-in, before waiting for them.
    """
    if scale is not None and not 0 < scale <= 1:
        raise OptionError(f"--scale {scale:g}: expected a share above 0 and up to 1")
    if tiny and scale is not None:
        raise OptionError(f"--tiny and --scale {scale:g} are two sizes: give one of them")
    if seed < 0:
        raise OptionError(f"--seed {seed}: expected 0 or more")
    identity = StandInIdentity.of(dataset, seed=seed, scale=scale, tiny=tiny)
    if _is_finished(root, identity):
        return root
    make_item(root, kind="stand-in", title=f"stand-in of {dataset.name}")
    with locked(root, notice=notice):
        if _is_finished(root, identity):  # another process made it while this one waited
            return root
        _check_free_space(root, dataset.synthesis_nbytes(scale=scale, tiny=tiny), dataset.name)
        _write_manifest(root, identity, [])
        paths = dataset.synthesize(root, scale=scale, tiny=tiny, seed=seed, progress=progress)
        _write_manifest(root, identity, paths)
    return root


def write_planned_files(
    root: Path, files: Sequence[PlannedFile], *, progress: Progress = no_progress
) -> list[Path]:
    """Write the files of a stand-in that are not there yet, several at once; return all of them.

    Each is written under a temporary name, flushed and renamed. ``progress`` is called with bytes
    written and to write.
    """
    missing = [(root / file.name, file) for file in files if not (root / file.name).exists()]
    total = sum(file.nbytes for _, file in missing)
    processes = 1 if total < SMALL_NBYTES else None
    for _ in run_jobs(_write_file, missing, processes=processes, progress=progress, total=total):
        pass
    return [root / file.name for file in files]


def _write_file(job: tuple[Path, PlannedFile], advance: Advance) -> None:
    path, file = job
    temporary = path.with_name(f".{path.name}.partial")
    with storage_errors(path, resumable=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            file.write(temporary)
            with temporary.open("rb+") as stream:
                os.fsync(stream.fileno())
            temporary.replace(path)
        except OSError:
            temporary.unlink(missing_ok=True)  # gives a full disk its space back
            raise
    advance(file.nbytes)


def _is_finished(root: Path, identity: StandInIdentity) -> bool:
    """Return whether a manifest lists files and all are there; refuse that of another stand-in."""
    manifest = stand_in_manifest(root) if (root / MANIFEST).exists() else None
    if manifest is None:
        return False
    files = {root / each["name"]: each["nbytes"] for each in manifest["files"]}
    expected = identity.header()
    if actual := {key: manifest.get(key) for key in expected if manifest.get(key) != expected[key]}:
        differing = {key: expected[key] for key in actual}
        raise StorageError(
            f"{root}: holds another stand-in ({_described(actual)}), expected "
            f"{_described(differing)}; delete it or give another folder"
        )
    for path, nbytes in files.items():
        if path.exists() and path.stat().st_size != nbytes:
            raise StorageError(
                f"{path}: is there but is not what iobench wrote; move it away or give another "
                "folder"
            )
    return bool(files) and all(path.exists() for path in files)


def _write_manifest(root: Path, identity: StandInIdentity, paths: Sequence[Path]) -> None:
    files = [
        {"name": path.relative_to(root).as_posix(), "nbytes": path.stat().st_size} for path in paths
    ]
    text = json.dumps({**identity.header(), "files": files}, indent=1) + "\n"
    write_atomically(root / MANIFEST, text.encode())


def _described(identity: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in identity.items())


def _check_free_space(root: Path, nbytes: int, name: str) -> None:
    existing = next(folder for folder in (root, *root.absolute().parents) if folder.exists())
    free = shutil.disk_usage(existing).free
    needed = nbytes - sum(path.stat().st_size for path in root.rglob("*") if path.is_file())
    if needed + SPARE_NBYTES > free:
        raise StorageError(
            f"{existing}: the stand-in of {name} needs {needed / 1e9:.2f} GB and "
            f"{SPARE_NBYTES / 1e9:.2f} GB to spare, {free / 1e9:.2f} GB are free; nothing was "
            "written: give another folder with --store-dir, or --tiny"
        )
