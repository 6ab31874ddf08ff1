"""Stand-ins on disk: where they lie, and that they are whole.

Each file appears whole and is never overwritten. The manifest (``stand-in.json``) is there first
and lists no file until all are there; an unfinished stand-in goes on with the files that it lacks.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from iobench.datasets.contract import Progress, Synthesizer, no_progress
from iobench.datasets.locate import MANIFEST, FileLocator, stand_in_manifest
from iobench.datasets.setup_processes import run_jobs
from iobench.errors import MissingFileError, OptionError, StorageError
from iobench.files.atomic import storage_errors, write_atomically
from iobench.files.locks import locked
from iobench.stores.places import make_item

if TYPE_CHECKING:
    from iobench.datasets.contract import Dataset
    from iobench.stores.contract import Notice

MANIFEST_VERSION: Final = 1


def stand_in_folder(
    dataset: Synthesizer,
    place: Path,
    *,
    seed: int = 0,
    scale: float | None = None,
    tiny: bool = False,
) -> Path:
    """Return where a dataset's stand-in lies below a folder of stores."""
    size = "tiny" if tiny else "default" if scale is None else f"scale-{scale:g}"
    name = getattr(dataset, "stand_in_name", dataset.name)
    return place / "stand-ins" / f"{name}-v{dataset.synthesis_version}-{size}-seed{seed}"


def locate_files(
    dataset: Dataset,
    *,
    store_root: Path,
    cache_dir: Path,
    data_dir: Path | None = None,
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
    if data_dir and wants_stand_in:
        raise OptionError(
            f"--data-dir {data_dir}: holds files of your own, --tiny and --scale ask for a "
            "stand-in; give one of them"
        )
    if not wants_stand_in:
        real = FileLocator(data_dir=data_dir, cache_dir=cache_dir, progress=progress)
        try:
            return dataset.files(real), real
        except MissingFileError:
            if data_dir or real.n_found or not isinstance(dataset, Synthesizer):
                raise
    if not isinstance(dataset, Synthesizer):
        raise OptionError(f"{dataset.name}: has no stand-in; leave out --tiny and --scale")
    root = stand_in_folder(dataset, store_root, seed=seed, scale=scale, tiny=tiny)
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
    """Return the top of the mirror layout with the finished stand-in, written if need be.

    ``notice`` is called with who else is writing it, before waiting for them.
    """
    if scale is not None and not 0 < scale <= 1:
        raise OptionError(f"--scale {scale:g}: expected a share above 0 and up to 1")
    if tiny and scale is not None:
        raise OptionError(f"--tiny and --scale {scale:g} are two sizes: give one of them")
    if seed < 0:
        raise OptionError(f"--seed {seed}: expected 0 or more")
    header = {
        "stand_in": MANIFEST_VERSION,
        "dataset": getattr(dataset, "stand_in_name", dataset.name),
        "version": dataset.synthesis_version,
        "seed": seed,
        "scale": scale,
        "tiny": tiny,
    }
    if _is_finished(root, header):
        return root
    files = dataset.stand_in_files(seed=seed, scale=scale, tiny=tiny)
    make_item(root, kind="stand-in", title=f"stand-in of {dataset.name}")
    with locked(root, notice=notice):
        if not _is_finished(root, header):  # nor made by another process while this one waited
            _write_manifest(root, header, ())
            # Of a tiny one the processes would take longer to start than the files to write.
            write_stand_in(root, files, processes=1 if tiny else None, progress=progress)
            _write_manifest(root, header, files)
    return root


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


def _is_finished(root: Path, header: Mapping[str, Any]) -> bool:
    """Return whether a manifest lists files and all are there; refuse that of another stand-in."""
    if not (root / MANIFEST).exists():
        return False
    manifest = stand_in_manifest(root)
    for key, expected in header.items():
        if manifest.get(key) != expected:
            raise StorageError(
                f"{root}: holds another stand-in ({key} {manifest.get(key)}), expected {key} "
                f"{expected}; delete it or give another folder"
            )
    files = {root / each["name"]: each["nbytes"] for each in manifest["files"]}
    for path, nbytes in files.items():
        if path.exists() and path.stat().st_size != nbytes:
            raise StorageError(
                f"{path}: is there but is not what iobench wrote; move it away or give another "
                "folder"
            )
    return bool(files) and all(path.exists() for path in files)


def _write_manifest(root: Path, header: Mapping[str, Any], names: Iterable[str]) -> None:
    files = [{"name": name, "nbytes": (root / name).stat().st_size} for name in names]
    text = json.dumps({**header, "files": files}, indent=1) + "\n"
    write_atomically(root / MANIFEST, text.encode())
