"""Means and deviations per channel and grid point, kept in a file that every process maps."""

from __future__ import annotations

import functools
import hashlib
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.datasets import run_jobs
from iobench.stores import make_item, merge_means, write_atomically

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.datasets import Locator, Where

SPREAD = 0.1
"""Added to every deviation, as upstream: (x - mean) / (std + 0.1), whatever the units."""
NORMALISATION_VERSION = 2
SAMPLES_PER_JOB = 16
"""Fixed, so that the sums do not depend on how many processes share the work."""
CHUNK = 1 << 14
"""Points handled at once: ten members of them fit a core's cache."""

Members = Callable[["Where"], "NDArray[np.float32]"]
"""Returns the members of each variable of a sample, (variables, members, points); picklable."""


def member_moments(fields: NDArray[np.float32], out: NDArray[np.float32]) -> None:
    """Fill ``out``, (2, points), with mean and deviation (ddof 0) over members."""
    n_members = np.float32(len(fields))
    scratch = np.empty((len(fields), min(CHUNK, fields.shape[1])), dtype=np.float32)
    for start in range(0, fields.shape[1], CHUNK):
        part = slice(start, start + CHUNK)
        members, spread = fields[:, part], out[1, part]
        differences = np.subtract(members, members[0], out=scratch[:, : members.shape[1]])
        shift = np.add.reduce(differences, axis=0)
        shift /= n_members
        np.add(members[0], shift, out=out[0, part])
        differences -= shift
        differences *= differences
        np.add.reduce(differences, axis=0, out=spread)
        spread /= n_members
        np.sqrt(spread, out=spread)


@functools.lru_cache(maxsize=8)
def mapped(path: Path) -> NDArray[np.float32]:
    """Return mean and divisor, (2, channels, points), of a file that `keep_statistics` wrote."""
    both: NDArray[np.float32] = np.load(path, mmap_mode="r")
    return both


def keep_statistics(
    name: str,
    members: Members,
    samples: Sequence[Where],
    files: Sequence[Path],
    locator: Locator,
) -> Path:
    """Return the file of statistics over samples, made where none is kept of them and ``files``."""
    states = [(path.name, path.stat()) for path in files]
    versions = [(n, s.st_size, getattr(s, "etag", "") or s.st_mtime_ns) for n, s in states]
    about = repr((NORMALISATION_VERSION, versions, samples))
    key = hashlib.sha256(about.encode()).hexdigest()[:24]
    path = locator.cache_dir / f"{name}-normalisation-{key}.npy"
    mapped.cache_clear()
    try:
        mapped(path)
    except (OSError, ValueError, EOFError):  # none, or a damaged one
        count, mean, squares = _moments(members, samples, locator)
        content = io.BytesIO()
        both = np.stack([mean, np.sqrt(squares / count) + SPREAD])
        np.save(content, both.astype(np.float32))
        make_item(locator.cache_dir, kind="index", title="indexes of source files")
        write_atomically(path, content.getvalue())
    return path


def _moments(members: Members, samples: Sequence[Where], locator: Locator) -> tuple[int, Any, Any]:
    """Return the moments over samples: of some at once (Welford), merged in their order."""
    starts = range(0, len(samples), SAMPLES_PER_JOB)
    jobs = [(members, samples[start : start + SAMPLES_PER_JOB]) for start in starts]
    waiting: dict[int, Any] = {}
    merged: tuple[int, Any, Any] = (0, 0.0, 0.0)
    due = done = 0
    for job, moments in run_jobs(_part_moments, jobs):
        done += len(jobs[job][1])
        locator.progress(done, len(samples))
        waiting[job] = moments
        while due in waiting:
            merged = merge_means(merged, waiting.pop(due))
            due += 1
    return merged


def _part_moments(
    job: tuple[Members, Sequence[Where]],
) -> tuple[int, NDArray[Any], NDArray[Any]]:
    members, samples = job
    mean, squares = np.zeros(()), np.zeros(())
    for count, where in enumerate(samples, start=1):
        fields = members(where)
        values = np.empty((2 * len(fields), fields.shape[2]), dtype=np.float32)
        for number, each in enumerate(fields):
            member_moments(each, values[2 * number : 2 * number + 2])
        difference = values - mean
        mean = mean + difference / count
        squares = squares + difference * (values - mean)
    return len(samples), mean, squares
