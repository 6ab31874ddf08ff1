"""Profiles: a run directory read back, the spans of all its processes in one table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, overload

import numpy as np

from iobench.errors import ProfileError
from iobench.recording import (
    SPAN_DTYPE,
    Anchor,
    ProcessFacts,
    RunDirectory,
    SpanFile,
    read_process_facts,
    read_span_file,
)
from iobench.recording.span_reader import read_head

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from iobench.analysis import Exposure
    from iobench.recording.span_file import Identity

__all__ = [
    "PROFILE_DTYPE",
    "Process",
    "Profile",
    "RankProfiles",
    "make_profile",
    "open_profile",
    "open_profiles",
]

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
    ppid : int
        The process that started it, -1 where unknown.
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
    ppid: int = -1

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
        Loading processes that the configuration expects, or that loaders started, and that left
        no span file.
    facts : tuple of ProcessFacts
        What the processes of a script told of themselves, those of all ranks.
    ranks : tuple of int
        Training processes that left spans, whether they were read or not.
    rank : int or None
        The only one whose spans were read; None where all were.
    """

    path: Path
    config: Mapping[str, Any]
    processes: tuple[Process, ...]
    spans: NDArray[Any]
    strings: tuple[str, ...]
    missing_workers: tuple[str, ...]
    facts: tuple[ProcessFacts, ...] = ()
    ranks: tuple[int, ...] = ()
    rank: int | None = None

    @property
    def is_script(self) -> bool:
        """Whether it is of a user's own script, and not of ``iobench profile``."""
        return self.config.get("kind") == "script"

    def facts_of(self, process: int) -> ProcessFacts | None:
        """Return what a process told of itself, by its index; None where it told nothing."""
        who = self.processes[process]
        return next((told for told in self.facts if _is_of(told, who)), None)

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


def open_profile(path: Path | str, *, rank: int | None = None) -> Profile:
    """Read one run directory, also of a run that died or still goes on.

    Span files it left in a spool on this machine are gathered first.

    Parameters
    ----------
    path : Path or str
        The run directory.
    rank : int, optional
        Read the spans of this training process and of its loading processes only.

    Raises
    ------
    ProfileError
        If it is no run directory, of another version, or mixes spans of two boots of a machine;
        or if no such training process recorded.
    """
    found = RankProfiles(path)
    if rank is None:
        return found.whole()
    if rank not in found.ranks:
        raise ProfileError(
            f"{found.path}: training process {rank} left no spans, expected one of "
            f"{', '.join(map(str, found.ranks)) or 'none'}"
        )
    return found[found.ranks.index(rank)]


def open_profiles(path: Path | str) -> Sequence[Profile]:
    """Read a run directory, or all run directories inside one that holds one per format.

    Formats come in the order they were asked for. Of a run of several training processes there is
    one profile each, read when it is asked for, and forgotten: so a run of any number of them is
    looked through in the memory of one.

    Raises
    ------
    ProfileError
        As `open_profile`; or if there is no run at all.
    """
    path = Path(path)
    if (path / "run.json").exists():
        found = RankProfiles(path)
        return found if len(found) > 1 else (found.whole(),)
    runs = sorted(file.parent for file in path.glob("*/run.json"))
    if not runs:
        state = "holds no run" if path.is_dir() else "is no directory"
        raise ProfileError(
            f"{path}: {state}; expected run.json in it or in <format>/, as made by "
            "'iobench profile --out' or 'iobench run --out'"
        )
    profiles = [open_profile(run) for run in runs]
    return tuple(sorted(profiles, key=lambda profile: profile.config.get("position", 0)))


class RankProfiles(Sequence[Profile]):
    """The profiles of one run directory, one for each training process, read one by one.

    Nothing is kept: who goes through them has the spans of one at a time in memory.

    Parameters
    ----------
    path : Path or str
        The run directory.

    Attributes
    ----------
    path : Path
    ranks : tuple of int
        Training processes that left spans.

    Raises
    ------
    ProfileError
        If it is no run directory, of another version, or mixes spans of two boots of a machine.
    """

    def __init__(self, path: Path | str) -> None:
        run = RunDirectory.open(Path(path))
        run.gather()
        self.path = run.path
        self._config = run.config
        self._facts = read_process_facts(run.processes_path)
        heads = [(file, read_head(file).identity) for file in run.span_files()]
        _check_boots(heads)
        self._files: dict[int, list[Path]] = {}
        for file, identity in heads:
            self._files.setdefault(identity.rank, []).append(file)
        self.ranks = tuple(
            sorted({identity.rank for _, identity in heads if identity.role == "consumer"})
        )

    def __len__(self) -> int:
        return len(self.ranks)

    @overload
    def __getitem__(self, index: int) -> Profile: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Profile, ...]: ...

    def __getitem__(self, index: int | slice) -> Profile | tuple[Profile, ...]:
        if isinstance(index, slice):
            return tuple(self._read(rank) for rank in self.ranks[index])
        return self._read(self.ranks[index])

    def whole(self) -> Profile:
        """Return one profile of all training processes."""
        return self._read(None)

    def _read(self, rank: int | None) -> Profile:
        chosen = [rank] if rank is not None else sorted(self._files)
        files = [read_span_file(file) for each in chosen for file in self._files[each]]
        return make_profile(
            self.path, self._config, files, facts=self._facts, ranks=self.ranks, rank=rank
        )


def make_profile(
    path: Path,
    config: Mapping[str, Any],
    files: Sequence[SpanFile],
    *,
    facts: Sequence[ProcessFacts] = (),
    ranks: Sequence[int] = (),
    rank: int | None = None,
) -> Profile:
    """Join the span files of one run; the other parameters are those of `Profile`."""
    files = sorted(
        files,
        key=lambda file: (file.rank, file.role, file.worker, file.start.monotonic_ns, file.pid),
    )
    strings = ("", *sorted({text for file in files for text in file.strings.values() if text}))
    number = {text: index for index, text in enumerate(strings)}
    spans = np.zeros(sum(len(file.spans) for file in files), PROFILE_DTYPE)
    row = 0
    for process, file in enumerate(files):
        _fill(spans[row : row + len(file.spans)], file, process, number)
        row += len(file.spans)
    processes = tuple(_process(file) for file in files)
    return Profile(
        path=path,
        config=config,
        processes=processes,
        spans=spans,
        strings=strings,
        missing_workers=(
            *_missing_by_name(config, processes),
            *_missing_by_pid(facts, processes, rank),
        ),
        facts=tuple(facts),
        ranks=tuple(ranks),
        rank=rank,
    )


def _missing_by_name(config: Mapping[str, Any], processes: Sequence[Process]) -> list[str]:
    names = {process.name for process in processes}
    return [name for name in config.get("expected_workers") or () if name not in names]


def _missing_by_pid(
    facts: Sequence[ProcessFacts], processes: Sequence[Process], rank: int | None
) -> list[str]:
    """Return the loading processes that scripts started and that left nothing."""
    seen = {(process.host, process.pid) for process in processes}
    return [
        f"loader-{loader.number} process {pid}"
        for told in facts
        if rank is None or told.rank == rank
        for loader in told.loaders
        for pid in loader.worker_pids
        if (told.host, pid) not in seen
    ]


def _is_of(told: ProcessFacts, who: Process) -> bool:
    return (told.pid, told.host, told.rank) == (who.pid, who.host, who.rank)


def _check_boots(heads: Sequence[tuple[Path, Identity]]) -> None:
    """Refuse two boots of one machine: their clocks cannot be compared."""
    first: dict[str, tuple[Path, Identity]] = {}
    for path, identity in heads:
        known_path, known = first.setdefault(identity.host, (path, identity))
        if identity.boot_id and known.boot_id and identity.boot_id != known.boot_id:
            raise ProfileError(
                f"{path}: was written after another start of {identity.host} than "
                f"{known_path.name}, so that their clocks cannot be compared; "
                "expected the files of one run, remove those of the other"
            )


def _fill(table: NDArray[Any], file: SpanFile, process: int, number: Mapping[str, int]) -> None:
    """Copy the spans of a file, with the profile's own numbers for its texts."""
    for name in SPAN_DTYPE.names or ():
        table[name] = file.spans[name]
    known = np.array(sorted(file.strings), dtype=np.int64)
    renumbered = np.array([number[file.strings[key]] for key in known.tolist()], dtype=np.int64)
    for name in ("label", "detail"):
        table[name] = renumbered[np.searchsorted(known, file.spans[name])]
    table["process"] = process
    table["thread"] = file.threads


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
        ppid=file.ppid,
    )
