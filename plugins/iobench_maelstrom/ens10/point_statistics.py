"""Normalisation of ensemble means and deviations, per channel and grid point.

Mean and deviation over all samples are computed once and kept beside the index, as an ``.npy``
file that every loading process maps.
"""

from __future__ import annotations

import functools
import hashlib
import io
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.datasets import as_path, run_jobs
from iobench.errors import StorageError
from iobench.stores import make_item, write_atomically

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.datasets import Advance, Locator, Where

SPREAD = 0.1
"""Added to every deviation, as upstream: (x - mean) / (std + 0.1), whatever the units."""
NORMALISATION_VERSION = 2
SAMPLES_PER_JOB = 16
"""Fixed, so that the sums do not depend on how many processes share the work."""
FEW_VALUES = 1 << 25
"""Fewer are summed sooner by this process than by ones that must start first."""
CHUNK = 1 << 14
"""Points handled at once: ten members of them fit a core's cache."""

Members = Callable[["Where"], Iterable["NDArray[np.float32]"]]
"""Returns the members of each variable of a sample, (members, points); picklable."""
Moments = tuple[int, Any, Any]
"""Count, mean and sum of squared deviations of each channel, float64, shape (channels, points)."""


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


class PointStatistics:
    """The normalisation on disk: mean and divisor, float32, shape (2, channels, points)."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[type[PointStatistics], tuple[Path]]:
        return PointStatistics, (self.path,)

    @functools.cached_property
    def arrays(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Mean and divisor (deviation + `SPREAD`), mapped: all processes of the machine share."""
        mean, divisor = np.load(self.path, mmap_mode="r")
        return mean, divisor

    def score(self, number: int, fields: NDArray[np.float32], out: NDArray[np.float32]) -> None:
        """Fill ``out``, (2, points): normalised mean and deviation of the members of a variable."""
        mean, divisor = self.arrays
        pair = slice(2 * number, 2 * number + 2)
        member_moments(fields, out)
        out -= mean[pair]
        out /= divisor[pair]

    def facts(self) -> dict[str, str]:
        """Return what it is and a digest of the values, for the provenance of stores."""
        digest = hashlib.sha256()
        for array in self.arrays:
            digest.update(np.ascontiguousarray(array).data)
        return {
            "formula": f"(x - mean) / (std + {SPREAD})",
            "over": "samples, per channel and grid point, ddof 0",
            "sha256": digest.hexdigest(),
        }


def normalisation_of(
    name: str,
    members: Members,
    samples: Sequence[Where],
    files: Sequence[str],
    locator: Locator,
    *,
    sizes: tuple[int, int, int],
) -> PointStatistics:
    """Return the statistics over samples, computed where they are not kept.

    They are known by the samples, their ``files``, and ``sizes``: how many variables, members and
    values of each there are.
    """
    key = _key(samples, files, sizes)
    path = locator.cache_dir / f"{name.removeprefix('maelstrom-')}-normalisation-{key}.npy"
    statistics = PointStatistics(path)
    try:
        _ = statistics.arrays
    except (OSError, ValueError, EOFError):  # none, or a damaged one
        n_values = len(samples) * int(np.prod(sizes))
        count, mean, squares = _moments(members, samples, locator, is_small=n_values < FEW_VALUES)
        both = np.stack([mean, np.sqrt(squares / count) + SPREAD])
        content = io.BytesIO()
        np.save(content, both.astype(np.float32))
        try:
            make_item(locator.cache_dir, kind="index", title="indexes of source files")
            write_atomically(path, content.getvalue())
        except StorageError as error:
            raise StorageError(
                f"the normalisation of {len(samples)} samples cannot be kept: {error}; give "
                "--store-dir"
            ) from error
    return statistics


def _moments(
    members: Members, samples: Sequence[Where], locator: Locator, *, is_small: bool
) -> Moments:
    """Return the moments over samples: of some at once (Welford), merged in their order."""
    starts = range(0, len(samples), SAMPLES_PER_JOB)
    jobs = [(members, samples[start : start + SAMPLES_PER_JOB]) for start in starts]
    waiting: dict[int, Moments] = {}
    merged: Moments = (0, 0.0, 0.0)
    due = 0
    for job, moments in run_jobs(
        _part_moments,
        jobs,
        processes=1 if is_small else None,
        progress=locator.progress,
        total=len(samples),
    ):
        waiting[job] = moments
        while (ready := waiting.pop(due, None)) is not None:
            merged = _merge(merged, ready) if due else ready
            due += 1
    return merged


def _merge(one: Moments, two: Moments) -> Moments:
    """Return the moments of both (Chan, Golub and LeVeque)."""
    (count, mean, squares), (added, added_mean, added_squares) = one, two
    total, difference = count + added, added_mean - mean
    mean += difference * (added / total)
    squares += added_squares + difference**2 * (count * added / total)
    return total, mean, squares


def _part_moments(job: tuple[Members, Sequence[Where]], advance: Advance) -> Moments:
    members, samples = job
    count, mean, squares = 0, np.zeros(()), np.zeros(())
    for where in samples:
        fields = list(members(where))
        values = np.empty((2 * len(fields), fields[0].shape[1]), dtype=np.float32)
        for number, each in enumerate(fields):
            member_moments(each, values[2 * number : 2 * number + 2])
        count += 1
        difference = values - mean
        mean = mean + difference / count
        squares = squares + difference * (values - mean)
        advance(1)
    return count, mean, squares


def _key(samples: Sequence[Any], files: Sequence[str], sizes: tuple[int, int, int]) -> str:
    """Return a digest of what statistics depend on: samples, and states of their files."""
    states = [(path.name, path.stat()) for path in map(as_path, files)]
    about = {
        "version": NORMALISATION_VERSION,
        "spread": SPREAD,
        "members": sizes,
        "files": [
            [name, state.st_size, getattr(state, "etag", "") or state.st_mtime_ns]
            for name, state in states
        ],
        "samples": hashlib.sha256(repr(samples).encode()).hexdigest(),
    }
    return hashlib.sha256(json.dumps(about).encode()).hexdigest()[:24]
