"""What ``iobench limits`` does, without the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from iobench.analysis.read_spans import middle_read_nbytes
from iobench.cpus import available_cpus
from iobench.errors import OptionError
from iobench.recording.run_directory import RunDirectory
from iobench.runs.reading import open_profile
from iobench.runs.run_facts import RunFacts
from iobench.storage.probe import probe_run
from iobench.stores.finished_store import open_store
from iobench.stores.manifest import MANIFEST_NAME

if TYPE_CHECKING:
    from pathlib import Path

    from iobench.storage.probe_figures import StorageLimits

Requests = tuple[int, str]
"""The size of the reads to try, 0 where it is not known, and whose they are, in words."""
ANY: Final[Requests] = (1 << 20, "")
SOME_SAMPLES: Final = 16


def requests_of_folder(folder: Path) -> Requests:
    """Return the reads of a store's or a run's samples."""
    nbytes, like = _of_store(folder) if (folder / MANIFEST_NAME).exists() else _of_run(folder)
    if not nbytes:
        raise OptionError(f"--like {folder}: holds nothing that is read; name a store")
    return nbytes, like


def _of_store(folder: Path) -> tuple[int, str]:
    store = open_store(folder)
    store.close()
    return -(-store.manifest.nbytes // max(1, len(store))), f"samples of the store {folder}"


def _of_run(folder: Path) -> tuple[int | None, str]:
    runs = sorted(file.parent for file in [*folder.glob("run.json"), *folder.glob("*/run.json")])
    if not runs:
        raise OptionError(f"--like {folder}: expected a store or a run")
    facts = RunFacts.from_config(RunDirectory.open(runs[0]).config, runs[0])
    if facts.store is not None and facts.store.n_samples:
        like = f"samples of the run {folder}"
        return -(-(facts.store.nbytes or 0) // facts.store.n_samples), like
    if facts.sample_nbytes:
        return facts.sample_nbytes, f"samples of the run {folder}, as they are in memory"
    return middle_read_nbytes(open_profile(runs[0])), f"the reads of the run {folder}"


def measured_limits(
    path: Path, requests: Requests = ANY, *, duration_s: float = 20.0
) -> StorageLimits:
    """Return the limits of a folder's storage, by as many readers as there are CPUs."""
    nbytes, like = requests
    result = probe_run([path], nbytes, available_cpus(), like=like, duration_s=duration_s)
    return replace(result, path=str(path.resolve()))
