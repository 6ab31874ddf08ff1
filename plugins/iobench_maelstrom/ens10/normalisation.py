"""Mean and deviation over all samples, per channel and grid point: computed once and kept.

They lie beside the index, as two ``.npy`` files that every loading process maps; ``about.json``
says what they were computed from.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.datasets import (
    Advance,
    FileRange,
    Progress,
    decode_message,
    index_folders,
    make_index_folder,
    read_messages,
    run_jobs,
)
from iobench.errors import StorageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "Moments",
    "Statistics",
    "describe_messages",
    "describe_samples",
    "keep_statistics",
    "member_moments",
    "normalisation_folder",
]

SPREAD = 0.1
"""Added to every deviation, as upstream: (x - mean) / (std + 0.1), whatever the units."""
NORMALISATION_VERSION = 1
SAMPLES_PER_JOB = 16
"""Fixed, so that the sums do not depend on how many processes share the work."""
FEW_VALUES = 1 << 25
"""Fewer are summed sooner by this process than by ones that must start first."""
CHUNK = 1 << 14
"""Points handled at once: ten members of them fit a core's cache."""

Part = tuple[int, Sequence[Sequence[FileRange[str]]]]


def member_moments(
    fields: NDArray[np.float32], mean: NDArray[np.float32], deviation: NDArray[np.float32]
) -> None:
    """Write mean and standard deviation (ddof 0) over the members into ``mean``, ``deviation``.

    Parameters
    ----------
    fields : ndarray of float32, shape (members, points)
        Fields of one variable.
    mean, deviation : ndarray of float32, shape (points,)
        Filled. Differences to the first member are averaged, so that large values (pressure) lose
        no digits.
    """
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


@dataclass(frozen=True, slots=True)
class Statistics:
    """The normalisation on disk: mean and divisor, float32, shape (channels, points)."""

    folder: Path

    def load(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Map mean and divisor (deviation + `SPREAD`), shared by all processes of the machine."""
        mean = np.load(self.folder / "mean.npy", mmap_mode="r")
        return mean, np.load(self.folder / "divisor.npy", mmap_mode="r")

    def facts(self) -> dict[str, str]:
        """Return what it is and a digest of the values, for the provenance of stores."""
        digest = hashlib.sha256()
        for array in self.load():
            digest.update(np.ascontiguousarray(array).data)
        return {
            "formula": f"(x - mean) / (std + {SPREAD})",
            "over": "samples, per channel and grid point, ddof 0",
            "sha256": digest.hexdigest(),
        }


def normalisation_folder(
    beside: Path,
    cache_dir: Path,
    samples: Sequence[Sequence[FileRange[str]]],
    *,
    n_members: int,
    n_points: int,
    processes: int | None = None,
    progress: Progress,
) -> tuple[Statistics, bool]:
    """Return the statistics over ``samples`` and whether they had to be computed.

    Parameters
    ----------
    beside : Path
        Folder of the data, where an earlier version may have kept them.
    cache_dir : Path
        Where they are kept.
    samples : sequence of sequence of FileRange
        Messages of each sample, by variable and member.
    n_members, n_points : int
        Messages of a variable, points of a field.
    processes : int, optional
        By default the usable CPUs.
    progress : Progress
        Called with (messages done, in all).

    Raises
    ------
    StorageError
        If they cannot be written.
    """
    about = describe_messages(samples, n_members=n_members)
    return keep_statistics(
        index_folders(beside, cache_dir),
        f"ens10-normalisation-{about['key'][:16]}",
        about,
        lambda: list(_channel_moments(samples, n_members, n_points, processes, progress)),
    )


def keep_statistics(
    places: Sequence[Path],
    name: str,
    about: dict[str, Any],
    compute: Callable[[], Sequence[Moments]],
) -> tuple[Statistics, bool]:
    """Return the statistics kept under ``name``, and whether they had to be computed.

    Parameters
    ----------
    places : sequence of Path
        Folders that may hold them; the first is written.
    name : str
        Of their folder.
    about : dict
        What they depend on: others under that name are not taken.
    compute : callable
        Returns the moments of each pair of channels, in order.

    Raises
    ------
    StorageError
        If the first folder does not take them.
    """
    for parent in places:
        if _holds(parent / name, about):
            return Statistics(parent / name), False
    parts = compute()
    mean = np.concatenate([part.mean for part in parts]).astype(np.float32)
    deviation = np.concatenate([np.sqrt(part.squares / part.count) for part in parts])
    divisor = (deviation + SPREAD).astype(np.float32)
    parent = places[0]
    try:
        make_index_folder(parent)
        return Statistics(_save(parent / name, mean, divisor, about)), True
    except OSError as error:
        raise StorageError(
            f"the normalisation of {about['n_samples']} samples cannot be kept in {parent} "
            f"({error.strerror or error}); make it writable or give --store-dir"
        ) from error


def _channel_moments(
    samples: Sequence[Sequence[FileRange[str]]],
    n_members: int,
    n_points: int,
    processes: int | None,
    progress: Progress,
) -> Iterator[Moments]:
    """Return the moments of each variable's two channels, merged in a fixed order."""
    n_variables = len(samples[0]) // n_members
    jobs = [
        (
            n_points,
            [
                sample[variable * n_members : (variable + 1) * n_members]
                for sample in samples[start : start + SAMPLES_PER_JOB]
            ],
        )
        for start in range(0, len(samples), SAMPLES_PER_JOB)
        for variable in range(n_variables)
    ]
    merged: dict[int, Moments] = {}
    waiting: dict[int, Moments] = {}
    due = dict.fromkeys(range(n_variables), 0)
    total = sum(len(sample) for sample in samples)
    if processes is None and total * n_points < FEW_VALUES:
        processes = 1
    for number, moments in run_jobs(
        _part_moments, jobs, processes=processes, progress=progress, total=total
    ):
        waiting[number] = moments
        variable = number % n_variables
        while (ready := waiting.pop(due[variable] * n_variables + variable, None)) is not None:
            if variable in merged:
                merged[variable].merge(ready)
            else:
                merged[variable] = ready
            due[variable] += 1
    return iter([merged[variable] for variable in range(n_variables)])


def _part_moments(job: Part, advance: Advance) -> Moments:
    """Return the moments of one variable over some samples."""
    n_points, samples = job
    moments = Moments(0, np.zeros((2, n_points)), np.zeros((2, n_points)))
    channels = np.empty((2, n_points), dtype=np.float32)
    fields = np.empty((len(samples[0]), n_points), dtype=np.float32)
    for extents in samples:
        for number, message in enumerate(read_messages(extents)):
            decode_message(message, where=f"{extents[number]}", out=fields[number])
        member_moments(fields, channels[0], channels[1])
        moments.add(channels)
        advance(len(extents))
    return moments


def describe_messages(
    samples: Sequence[Sequence[FileRange[str]]], *, n_members: int
) -> dict[str, Any]:
    """Return what identifies these messages: their places, and their files' sizes and times."""
    files = sorted({extent[0] for sample in samples for extent in sample})
    messages = [[(files.index(f), o, n) for f, o, n in sample] for sample in samples]
    return describe_samples(files, messages, n_members=n_members)


def describe_samples(
    files: Sequence[str], samples: Sequence[Any], *, n_members: int
) -> dict[str, Any]:
    """Return what statistics over ``samples`` depend on, JSON-ready, with a ``key`` for all of it.

    Parameters
    ----------
    files : sequence of str
        The files they were computed from; their sizes and times count.
    samples : sequence
        Where each sample is, by the files' numbers; its ``repr`` counts.
    n_members : int
        Members of each variable.
    """
    about: dict[str, Any] = {
        "version": NORMALISATION_VERSION,
        "spread": SPREAD,
        "n_samples": len(samples),
        "n_members": n_members,
        "files": [[Path(file).name, *_state(file)] for file in files],
        "messages": hashlib.sha256(repr(samples).encode()).hexdigest(),
    }
    about["key"] = hashlib.sha256(json.dumps(about).encode()).hexdigest()
    return about


def _state(file: str) -> tuple[int, int]:
    found = Path(file).stat()
    return found.st_size, found.st_mtime_ns


def _holds(folder: Path, about: dict[str, Any]) -> bool:
    try:
        return bool(json.loads((folder / "about.json").read_text()) == about)
    except (OSError, ValueError):
        return False


def _save(
    folder: Path, mean: NDArray[np.float32], divisor: NDArray[np.float32], about: dict[str, Any]
) -> Path:
    """Write the folder under a temporary name and rename it; another process's is as good."""
    unfinished = Path(tempfile.mkdtemp(prefix=".iobench-unfinished-", dir=folder.parent))
    try:
        for name, array in (("mean", mean), ("divisor", divisor)):
            with (unfinished / f"{name}.npy").open("wb") as stream:
                np.save(stream, array)
                stream.flush()
                os.fsync(stream.fileno())
        (unfinished / "about.json").write_text(json.dumps(about))
        unfinished.chmod(0o755)
        if not _holds(folder, about):
            shutil.rmtree(folder, ignore_errors=True)
            unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return folder
