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
    from collections.abc import Sequence
    from pathlib import Path

    from iobench.profiling.formats import Prepared
    from iobench.storage.probe_figures import StorageLimits


class Requests(msgspec.Struct, frozen=True):
    """The reads to try: their size, and whose they are, in words."""

    nbytes: int = 1 << 20
    like: str = ""


ANY: Final = Requests()


def requests_of_folder(folder: Path) -> Requests:
    """Return the reads of a store's or a run's samples."""
    if (folder / MANIFEST_NAME).exists():
        store = open_store(folder)
        store.close()
        return _per_sample(store.manifest.nbytes, len(store), f"samples of the store {folder}")
    runs = [folder] if (folder / "run.json").is_file() else _runs_in(folder)
    if not runs:
        raise OptionError(f"--like {folder}: expected a store or a run")
    about = RunFacts.from_config(RunDirectory.open(runs[0]).config, runs[0])
    if about.store is not None and about.store.n_samples:
        like = f"samples of the run {folder}"
        return _per_sample(about.store.nbytes or 0, about.store.n_samples, like)
    if about.sample_nbytes:
        return Requests(about.sample_nbytes, f"samples of the run {folder}, as they are in memory")
    read_nbytes = middle_read_nbytes(open_profile(runs[0]))
    if read_nbytes is None:
        raise OptionError(f"--like {folder}: no read of the run was seen; name a store")
    return Requests(read_nbytes, f"the reads of the run {folder}")


def _runs_in(folder: Path) -> list[Path]:
    return sorted(file.parent for file in folder.glob("*/run.json")) if folder.is_dir() else []


def _per_sample(nbytes: int, n_samples: int, like: str) -> Requests:
    if nbytes < 1 or n_samples < 1:
        raise OptionError(f"--like: {like} hold nothing")
    return Requests(-(-nbytes // n_samples), like)


def measured_limits(
    path: Path, requests: Requests = ANY, *, duration_s: float = 20.0
) -> StorageLimits:
    """Return the limits of a folder's storage, by as many readers as there are CPUs."""
    result = probe_run(
        [path], requests.nbytes, available_cpus(), like=requests.like, duration_s=duration_s
    )
    return replace(result, path=str(path.resolve()))


SOME_SAMPLES: Final = 16


class RunProbes:
    """Probes of what the runs of a profile read, before them; of equal reads one."""

    def __init__(self, duration_s: float | None, n_runs: int) -> None:
        self._duration_s = None if duration_s is None else duration_s / n_runs
        self._limits: dict[Any, StorageLimits | str] = {}

    def before(self, one: Prepared, n_samples_all: int | None) -> dict[str, Any]:
        """Probe, and return what ``run.json`` says of it."""
        if self._duration_s is None:
            return {}
        requests, readers = requests_of_run(one, n_samples_all), max(1, one.threads or one.workers)
        key = tuple(one.files), requests.nbytes, readers
        is_first = key not in self._limits
        result = self._limits[key] if not is_first else self._probe(one.files, requests, readers)
        self._limits[key] = result
        if isinstance(result, str):
            return {"no_storage_probe": result}
        return {
            "storage_limits": [msgspec.to_builtins(result)],
            "storage_probed": "before",
            "storage_probe_s": result.spent_ns / 1e9 if is_first else 0.0,
        }

    def _probe(
        self, files: Sequence[Path], requests: Requests, readers: int
    ) -> StorageLimits | str:
        assert self._duration_s is not None
        if files and not requests.nbytes and not any(map(is_url, files)):
            return "how much is read at once is not known"
        try:
            return probe_run(
                files, requests.nbytes, readers, like=requests.like, duration_s=self._duration_s
            )
        except (IobenchError, OSError) as error:  # the run tells what is wrong with its files
            return str(error)


def requests_of_run(one: Prepared, n_samples_all: int | None) -> Requests:
    """Return the reads of a run to be: of a store its extents, else what files have of a sample."""
    work = one.work
    if isinstance(work, Pipeline) and one.store is not None and len(work):
        some = range(0, len(work), -(-len(work) // SOME_SAMPLES))
        where = [work.where[number] for number in some]
        if all(isinstance(each, list) and each for each in where):
            extents = [extent for each in where for extent in each]
            if all(isinstance(extent, FileRange) for extent in extents):
                sizes = sorted(extent.nbytes for extent in extents)
                return Requests(sizes[len(sizes) // 2], "samples of the store")
    nbytes = files_nbytes(one.files)
    n_samples = n_samples_all if one.store is None else one.store.get("n_samples")
    if not nbytes or not n_samples:
        return Requests(0)
    return Requests(-(-nbytes // n_samples), "what the files have of a sample")
