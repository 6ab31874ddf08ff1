"""What ``iobench limits`` does, without the command line, and the probe before a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec.structs import replace

from iobench.analysis.read_spans import middle_read_nbytes
from iobench.cpus import available_cpus
from iobench.errors import IobenchError, OptionError
from iobench.files.ranges import FileRange
from iobench.files.urls import is_url
from iobench.loaders.pipeline import Pipeline
from iobench.recording.run_directory import RunDirectory
from iobench.runs.reading import open_profile
from iobench.runs.run_facts import RunFacts
from iobench.storage.page_cache import files_nbytes
from iobench.storage.probe import probe_run
from iobench.stores.finished_store import open_store
from iobench.stores.manifest import MANIFEST_NAME

if TYPE_CHECKING:
    from pathlib import Path

    from iobench.profiling.prepared import Prepared
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


class RunProbes:
    """Probes of what the runs of a profile read, before them; of equal reads one."""

    def __init__(self, duration_s: float | None, n_runs: int) -> None:
        self._duration_s = None if duration_s is None else duration_s / n_runs
        self._limits: dict[Any, StorageLimits | str] = {}

    def before(self, one: Prepared, n_samples_all: int | None) -> dict[str, Any]:
        """Probe, and return what ``run.json`` says of it."""
        if self._duration_s is None:
            return {}
        (nbytes, like), readers = (
            _requests_of(one, n_samples_all),
            max(1, one.threads or one.workers),
        )
        key = tuple(one.files), nbytes, readers
        is_first = key not in self._limits
        if is_first and one.files and not nbytes and not any(map(is_url, one.files)):
            self._limits[key] = "how much is read at once is not known"
        elif is_first:
            try:
                self._limits[key] = probe_run(
                    one.files, nbytes, readers, like=like, duration_s=self._duration_s
                )
            except (IobenchError, OSError) as error:  # the run tells what is wrong with its files
                self._limits[key] = str(error)
        result = self._limits[key]
        if isinstance(result, str):
            return {"no_storage_probe": result}
        return {
            "storage_limits": [msgspec.to_builtins(result)],
            "storage_probed": "before",
            "storage_probe_s": result.spent_ns / 1e9 if is_first else 0.0,
        }


def _requests_of(one: Prepared, n_samples_all: int | None) -> Requests:
    """Return the reads of a run to be: of a store its extents, else what files have of a sample."""
    work = one.work
    if isinstance(work, Pipeline) and one.store is not None and len(work):
        some = [work.where[n] for n in range(0, len(work), -(-len(work) // SOME_SAMPLES))]
        extents = [extent for each in some if isinstance(each, list) for extent in each]
        sizes = sorted(extent.nbytes for extent in extents if isinstance(extent, FileRange))
        if sizes:
            return sizes[len(sizes) // 2], "samples of the store"
    nbytes = files_nbytes(one.files)
    n_samples = n_samples_all if one.store is None else one.store.get("n_samples")
    if not nbytes or not n_samples:
        return 0, ""
    return -(-nbytes // n_samples), "what the files have of a sample"
