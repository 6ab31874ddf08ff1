"""Profiles: a run directory read back, the spans of all its processes in one table."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from iobench.errors import ProfileError
from iobench.recording import SPAN_DTYPE, Anchor, RunDirectory, SpanFile, read_span_file

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from iobench.analysis import Exposure

__all__ = ["PROFILE_DTYPE", "Process", "Profile", "make_profile", "open_profile", "open_profiles"]

PROFILE_DTYPE: Final = np.dtype([*SPAN_DTYPE.descr, ("process", "<i4"), ("thread", "<i4")])
"""A span, the index of its process in ``Profile.processes`` and of its thread within that."""


@dataclass(frozen=True, slots=True)
class Process:
    """One process that recorded.

    Parameters
    ----------
    role : str
        ``"consumer"``, ``"worker"``, or ``"child"`` for a fork nobody named.
    worker : int
        Number of the loading process, -1 for others.
    rank : int
        Training process it is or works for.
    pid : int
    host, boot_id : str
        Monotonic times of one boot id can be compared.
    anchors : tuple of Anchor
        Pairs of monotonic and wall-clock time: at the start, and at the end if it was closed.
    lost : int
        Spans it could not write.
    closed : bool
        Whether it ended its file itself; False for a process that was killed or is alive.
    damaged : int
        Records of its file that cannot be read; a file cut short counts as one at least.
    threads : tuple of str
        Names of its threads.
    """

    role: str
    worker: int
    rank: int
    pid: int
    host: str
    boot_id: str
    anchors: tuple[Anchor, ...]
    lost: int
    closed: bool
    damaged: int
    threads: tuple[str, ...]

    @property
    def name(self) -> str:
        """``"worker-<n>"`` for a loading process, else its role."""
        return f"{self.role}-{self.worker}" if self.worker >= 0 else self.role


@dataclass(frozen=True, slots=True)
class Profile:
    """One measured run, independent of the order in which its files were found.

    Parameters
    ----------
    path : Path
        The run directory.
    config : mapping
        What ``run.json`` says.
    processes : tuple of Process
        By rank, role, worker number and start.
    spans : ndarray of PROFILE_DTYPE, shape (n_spans,)
        ``label`` and ``detail`` are indices into ``strings``.
    strings : tuple of str
        Texts; the first is ``""``.
    missing_workers : tuple of str
        Loading processes that the configuration expects and that left no span file.
    """

    path: Path
    config: Mapping[str, Any]
    processes: tuple[Process, ...]
    spans: NDArray[Any]
    strings: tuple[str, ...]
    missing_workers: tuple[str, ...]

    @property
    def lost_spans(self) -> int:
        """Spans that could not be written, and records that cannot be read."""
        return sum(process.lost + process.damaged for process in self.processes)

    def string_number(self, text: str) -> int:
        """Return the index of a text in ``strings``, -1 if no span has it."""
        return self.strings.index(text) if text in self.strings else -1

    def exposure(self) -> Exposure:
        """Return who was waited for: `iobench.analysis.exposure` of this profile."""
        from iobench.analysis import exposure

        return exposure(self)


def open_profile(path: Path | str) -> Profile:
    """Read one run directory, also of a run that died or still goes on.

    Span files it left in a spool on this machine are gathered first.

    Raises
    ------
    ProfileError
        If it is no run directory, of another version, or mixes spans of two boots of a machine.
    """
    run = RunDirectory.open(Path(path))
    run.gather()
    return make_profile(run.path, run.config, [read_span_file(file) for file in run.span_files()])


def open_profiles(path: Path | str) -> tuple[Profile, ...]:
    """Read a run directory, or all run directories inside one that holds one per format.

    They come in the order they were asked for.

    Raises
    ------
    ProfileError
        As `open_profile`; or if there is no run at all.
    """
    path = Path(path)
    if (path / "run.json").exists():
        return (open_profile(path),)
    runs = sorted(file.parent for file in path.glob("*/run.json"))
    if not runs:
        state = "holds no run" if path.is_dir() else "is no directory"
        raise ProfileError(
            f"{path}: {state}; expected run.json in it or in <format>/, as made by "
            "'iobench profile --out' or 'iobench run --out'"
        )
    profiles = [open_profile(run) for run in runs]
    return tuple(sorted(profiles, key=lambda profile: profile.config.get("position", 0)))


def make_profile(path: Path, config: Mapping[str, Any], files: Sequence[SpanFile]) -> Profile:
    """Join the span files of one run.

    Raises
    ------
    ProfileError
        If one machine's files come from two boots: their clocks cannot be compared.
    """
    files = sorted(
        files,
        key=lambda file: (file.rank, file.role, file.worker, file.start.monotonic_ns, file.pid),
    )
    _check_boots(files)
    strings = ("", *sorted({text for file in files for text in file.strings.values() if text}))
    number = {text: index for index, text in enumerate(strings)}
    tables = [np.zeros(0, PROFILE_DTYPE)]
    for process, file in enumerate(files):
        tables.append(_table(file, process, number))
    names = {_process(file).name for file in files}
    return Profile(
        path=path,
        config=config,
        processes=tuple(_process(file) for file in files),
        spans=np.concatenate(tables),
        strings=strings,
        missing_workers=tuple(
            name for name in config.get("expected_workers") or () if name not in names
        ),
    )


def _check_boots(files: Sequence[SpanFile]) -> None:
    first: dict[str, SpanFile] = {}
    for file in files:
        known = first.setdefault(file.host, file)
        if file.boot_id and known.boot_id and file.boot_id != known.boot_id:
            raise ProfileError(
                f"{file.path}: was written after another start of {file.host} than "
                f"{known.path.name}, so that their clocks cannot be compared; "
                "expected the files of one run, remove those of the other"
            )


def _table(file: SpanFile, process: int, number: Mapping[str, int]) -> NDArray[Any]:
    """Return the spans of a file with the profile's own numbers for its texts."""
    table = np.zeros(len(file.spans), PROFILE_DTYPE)
    for name in SPAN_DTYPE.names or ():
        table[name] = file.spans[name]
    known = np.array(sorted(file.strings), dtype=np.int64)
    renumbered = np.array([number[file.strings[key]] for key in known.tolist()], dtype=np.int64)
    for name in ("label", "detail"):
        table[name] = renumbered[np.searchsorted(known, file.spans[name])]
    table["process"] = process
    table["thread"] = file.threads
    return table


def _process(file: SpanFile) -> Process:
    return Process(
        role=file.role,
        worker=file.worker,
        rank=file.rank,
        pid=file.pid,
        host=file.host,
        boot_id=file.boot_id,
        anchors=(file.start,) if file.end is None else (file.start, file.end),
        lost=file.lost,
        closed=file.closed,
        damaged=file.damaged + (file.missing_nbytes > 0),
        threads=file.thread_names,
    )
