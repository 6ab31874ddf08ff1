"""What ``iobench limits`` does, without the command line: whose requests, which threads, kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from iobench.cpus import available_cpus
from iobench.errors import OptionError, StorageError
from iobench.profiles.run_facts import RunFacts
from iobench.recording.run_directory import RunDirectory
from iobench.storage.file_systems import file_system_of
from iobench.storage.kept_limits import keep_limits, kept_limits, limits_folder
from iobench.storage.limit_probe import (
    DEFAULT_REQUEST_NBYTES,
    MAX_HELD_NBYTES,
    MAX_REQUEST_NBYTES,
    ORDERS,
    Probe,
    probe_limits,
)
from iobench.storage.probe_reads import ALIGNMENT
from iobench.stores.finished_store import open_store
from iobench.stores.manifest import MANIFEST_NAME
from iobench.stores.places import make_item

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from iobench.storage.limit_figures import StorageLimits

__all__ = ["ANY", "Requests", "default_threads", "measured_limits", "requests_of_folder"]


@dataclass(frozen=True, slots=True)
class Requests:
    """The reads to try: their size, their orders, and whose they are, in words."""

    nbytes: int = DEFAULT_REQUEST_NBYTES
    orders: tuple[str, ...] = ORDERS
    like: str = ""


ANY: Final = Requests()
MOST_THREADS: Final = 32
"""Tried where nobody says how many: the bytes of a probe are for all of them."""


def default_threads(request_nbytes: int = DEFAULT_REQUEST_NBYTES) -> tuple[int, ...]:
    """Return 1, 2, 4 and so on up to the CPUs this process may use, and these.

    At most 32, and as many as have buffers of 1 GiB in all.
    """
    fitting = MAX_HELD_NBYTES // 4 // min(request_nbytes, MAX_REQUEST_NBYTES)
    most = min(available_cpus(), MOST_THREADS, fitting)
    return tuple(sorted({*(1 << power for power in range(most.bit_length())), most}))


def requests_of_folder(folder: Path) -> Requests | None:
    """Return the reads of a store's or a run's samples, in random order; None of other folders.

    Raises
    ------
    OptionError
        If it does not tell how large its samples are.
    """
    if (folder / MANIFEST_NAME).exists():
        store = open_store(folder)
        nbytes, n_samples = store.manifest.nbytes, store.manifest.n_samples
        store.close()
        return requests_of_samples(nbytes, n_samples, f"samples of the store {folder}")
    runs = [folder] if (folder / "run.json").is_file() else _runs_below(folder)
    if not runs:
        return None
    about = RunFacts.from_config(RunDirectory.open(runs[0]).config, runs[0])
    if about.store is not None and about.store.n_samples:
        return requests_of_samples(
            about.store.nbytes or 0, about.store.n_samples, f"samples of the run {folder}"
        )
    sample_nbytes = about.sample_nbytes
    if not sample_nbytes:
        raise OptionError(
            f"--like {folder}: the run does not tell how large a sample is; name a dataset or store"
        )
    return Requests(
        sample_nbytes, ("random",), f"samples of the run {folder}, by their size in memory"
    )


def requests_of_samples(nbytes: int, n_samples: int, like: str) -> Requests:
    """Return reads of one sample each: what files hold, divided by the samples in them."""
    if nbytes < 1 or n_samples < 1:
        raise OptionError(f"--like: {like} hold nothing")
    return Requests(-(-nbytes // n_samples), ("random",), like)


def measured_limits(
    path: Path,
    requests: Requests = ANY,
    *,
    threads: Sequence[int] | None = None,
    duration_s: float = 20.0,
    max_nbytes: int = 4 << 30,
    refresh: bool = False,
) -> tuple[StorageLimits, str]:
    """Return the limits of a folder's storage and what was done, in words.

    They are measured and kept, or those kept from an earlier probe of the same path and requests.

    Raises
    ------
    IobenchError
        If the path is missing or holds nothing that can be read. Nothing is kept then.
    """
    chosen = tuple(sorted(set(threads))) if threads else default_threads(requests.nbytes)
    probe = Probe(
        path=path,
        threads=chosen,
        request_nbytes=requests.nbytes,
        orders=requests.orders,
        like=requests.like,
        duration_s=duration_s,
        max_nbytes=max_nbytes,
    )
    _check_room(probe)
    found = None if refresh else _kept(probe)
    if found is not None:
        return found, "kept from an earlier probe; --refresh measures again"
    limits = probe_limits(probe)
    if not any(each.n_reads for each in limits.reads):
        return limits, "not kept: nothing was read in that time"
    if not limits.mount:
        return limits, "not kept: the mount is not known"
    try:
        make_item(limits_folder(), kind="limits", title="what storage can do, by 'iobench limits'")
        keep_limits(limits)
    except StorageError as error:
        return limits, f"not kept: {error}"
    return limits, f"kept for {limits.mount}; reports of later runs on it name the limit"


def _check_room(probe: Probe) -> None:
    """Refuse bytes that are not enough for one read of each set: nothing would be measured."""
    n_sets = 3 * len(probe.orders) * len(probe.threads)  # direct, buffered, and that again
    least = n_sets * (min(probe.request_nbytes, MAX_REQUEST_NBYTES) + 2 * ALIGNMENT)
    if probe.max_nbytes < least:
        raise OptionError(
            f"--bytes {probe.max_nbytes}: too few for {n_sets} sets of reads of this size; "
            f"expected {least} or more, or fewer --threads"
        )


def _kept(probe: Probe) -> StorageLimits | None:
    mount = file_system_of(probe.path).mount
    if mount is None or not probe.path.exists():
        return None
    wanted = (
        str(probe.path.resolve()),
        min(probe.request_nbytes, MAX_REQUEST_NBYTES, probe.max_nbytes),
        probe.threads,
        set(probe.orders),
    )
    for limits in kept_limits(mount):
        orders = {each.order for each in limits.reads}
        if (limits.path, limits.request_nbytes, limits.threads, orders) == wanted:
            return limits
    return None


def _runs_below(folder: Path) -> list[Path]:
    return sorted(file.parent for file in folder.glob("*/run.json")) if folder.is_dir() else []
