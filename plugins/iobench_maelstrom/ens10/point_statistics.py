"""Normalisation of ensemble means and deviations, per channel and grid point.

Mean and deviation over all samples are computed once and kept beside the index, as an ``.npy``
file that every loading process maps.
"""

from __future__ import annotations

import functools
import hashlib
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from iobench.datasets import as_path, run_jobs, stopwatch
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

Members = Callable[["Where"], "NDArray[np.float32]"]
"""Returns one variable's members of a sample, float32, shape (members, points)."""


class MemberSource(Protocol):
    """A dataset whose variables are read one by one for the statistics; picklable."""

    name: str

    def members_of(self, number: int) -> Members:
        """Return what reads the members of a variable, by its number."""
        ...


def member_moments(
    fields: NDArray[np.float32], mean: NDArray[np.float32], deviation: NDArray[np.float32]
) -> None:
    """Write mean and standard deviation (ddof 0) over the members into ``mean``, ``deviation``."""
    n_members = np.float32(len(fields))
    scratch = np.empty((len(fields), min(CHUNK, fields.shape[1])), dtype=np.float32)
    for start in range(0, fields.shape[1], CHUNK):
        part = slice(start, start + CHUNK)
        members, spread = fields[:, part], deviation[part]
        differences = np.subtract(members, members[0], out=scratch[:, : members.shape[1]])
        shift = np.add.reduce(differences, axis=0)
        shift /= n_members
        np.add(members[0], shift, out=mean[part])
        differences -= shift
        differences *= differences
        np.add.reduce(differences, axis=0, out=spread)
        spread /= n_members
        np.sqrt(spread, out=spread)


@dataclass(slots=True)
class Moments:
    """Count, mean and sum of squared deviations so far, float64, shape (2, points)."""

    count: int
    mean: NDArray[np.float64]
    squares: NDArray[np.float64]

    def add(self, values: NDArray[np.float32]) -> None:
        """Take one more sample in (Welford)."""
        self.count += 1
        difference = values - self.mean
        self.mean += difference / self.count
        self.squares += difference * (values - self.mean)

    def merge(self, other: Moments) -> None:
        """Take other samples in (Chan, Golub and LeVeque)."""
        total = self.count + other.count
        difference = other.mean - self.mean
        self.mean += difference * (other.count / total)
        self.squares += other.squares + difference**2 * (self.count * other.count / total)
        self.count = total


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
        """Fill ``out``, shape (2, points): normalised mean and deviation of a variable's members.

        ``number`` is the variable's, ``fields`` are of shape (members, points).
        """
        mean, divisor = self.arrays
        pair = slice(2 * number, 2 * number + 2)
        member_moments(fields, out[0], out[1])
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
    source: MemberSource,
    samples: Sequence[Where],
    files: Sequence[str],
    locator: Locator,
    *,
    members: tuple[int, int, int],
) -> tuple[PointStatistics, dict[str, float]]:
    """Return the statistics over samples and, where they had to be computed, the seconds.

    They are known by the samples, their ``files``, and ``members``: how many variables, members
    and values of each there are.
    """
    name = source.name.removeprefix("maelstrom-")
    key = _key(samples, files, members)
    path = locator.cache_dir / f"{name}-normalisation-{key}.npy"
    statistics, watch = PointStatistics(path), stopwatch()
    try:
        _ = statistics.arrays
    except (OSError, ValueError, EOFError):  # none, or a damaged one
        n_variables, n_members, n_points = members
        n_values = len(samples) * n_variables * n_members * n_points
        parts = _moments(source, samples, locator, n_variables, n_values)
        deviation = np.concatenate([np.sqrt(part.squares / part.count) for part in parts])
        both = np.stack([np.concatenate([part.mean for part in parts]), deviation + SPREAD])
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
        return statistics, {"normalisation": watch()}
    return statistics, {}


def _moments(
    source: MemberSource,
    samples: Sequence[Where],
    locator: Locator,
    n_variables: int,
    n_values: int,
) -> list[Moments]:
    """Return the moments of each variable's two channels, merged in a fixed order."""
    jobs = [
        (source, number, samples[start : start + SAMPLES_PER_JOB])
        for start in range(0, len(samples), SAMPLES_PER_JOB)
        for number in range(n_variables)
    ]
    outcomes = run_jobs(
        _part_moments,
        jobs,
        processes=1 if n_values < FEW_VALUES else None,
        progress=locator.progress,
        total=len(samples) * n_variables,
    )
    merged: dict[int, Moments] = {}
    waiting: dict[int, Moments] = {}
    due = list(range(n_variables))
    for job, moments in outcomes:
        waiting[job] = moments
        variable = job % n_variables
        while (ready := waiting.pop(due[variable], None)) is not None:
            if merged.setdefault(variable, ready) is not ready:
                merged[variable].merge(ready)
            due[variable] += n_variables
    return [merged[number] for number in range(n_variables)]


def _part_moments(job: tuple[MemberSource, int, Sequence[Where]], advance: Advance) -> Moments:
    """Return the moments of one variable over some samples."""
    source, number, samples = job
    members = source.members_of(number)
    moments: Moments | None = None
    for where in samples:
        fields = members(where)
        channels = np.empty((2, fields.shape[1]), dtype=np.float32)
        member_moments(fields, channels[0], channels[1])
        if moments is None:
            moments = Moments(0, np.zeros(channels.shape), np.zeros(channels.shape))
        moments.add(channels)
        advance(1)
    assert moments is not None, "a job has samples"
    return moments


def _key(samples: Sequence[Any], files: Sequence[str], members: tuple[int, int, int]) -> str:
    """Return a digest of what statistics depend on: samples, and states of their files."""
    states = [(path.name, path.stat()) for path in map(as_path, files)]
    about = {
        "version": NORMALISATION_VERSION,
        "spread": SPREAD,
        "members": members,
        "files": [
            [name, state.st_size, getattr(state, "etag", "") or state.st_mtime_ns]
            for name, state in states
        ],
        "samples": hashlib.sha256(repr(samples).encode()).hexdigest(),
    }
    return hashlib.sha256(json.dumps(about).encode()).hexdigest()[:24]
