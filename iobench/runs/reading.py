"""Run directories read back, all training processes at once or one by one; folders of runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from iobench.errors import ProfileError
from iobench.recording.digests import read_digests
from iobench.recording.facts import read_process_facts
from iobench.recording.kinds import FAILED, HANG_NS, WHOLE, Kind
from iobench.recording.run_directory import RunDirectory
from iobench.recording.span_file import SPAN_DTYPE, Flag
from iobench.recording.span_reader import SpanFile, read_head, read_span_file
from iobench.recording.this_process import host_name
from iobench.runs.bounded import without_gaps
from iobench.runs.contents import PROFILE_DTYPE, Process, RunData
from iobench.runs.machine_samples import of_process, read_machines
from iobench.runs.received import with_received
from iobench.runs.run_facts import RunFacts

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.recording.span_reader import Head


def open_profile(path: Path | str, *, rank: int | None = None) -> RunData:
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
    files = RunFiles(path)
    if rank is not None and rank not in files.ranks:
        raise ProfileError(
            f"{files.path}: training process {rank} left no spans, expected one of "
            f"{', '.join(map(str, files.ranks)) or 'none'}"
        )
    return files.read(rank)


class RunFiles:
    """The files of one run directory, of which the spans of one rank, or of all, are read."""

    def __init__(self, path: Path | str, *, live: bool = False) -> None:
        self._run = run = RunDirectory.open(Path(path))
        self._live = live
        facts = RunFacts.from_config(run.config, run.path)
        if not live:
            run.gather()
        self.path = run.path
        self.config: Mapping[str, Any] = run.config
        self._facts = tuple(read_process_facts(run.processes_path))
        self.run_facts = facts.with_processes(self._facts)
        self._digests = read_digests(run.path)
        self._machines, self._damaged_machines = read_machines(run.path)
        self._stopped = run.stopped()
        self._files: dict[int, list[Path]] = {}
        heads = self._list()
        consumers = {identity.rank for _, identity in heads if identity.role == "consumer"}
        self.ranks = tuple(sorted(consumers))

    def _list(self) -> list[tuple[Path, Head]]:
        """Note the files of each rank; return them with who wrote them."""
        heads = [(file, read_head(file)) for file in self._run.span_files(live=self._live)]
        _check_boots(heads)
        self._files.clear()
        for file, identity in heads:
            self._files.setdefault(identity.rank, []).append(file)
        return heads

    def _span_files(self, ranks: Sequence[int], since_ns: int) -> list[SpanFile]:
        """Read the files of some ranks; once more where one was removed meanwhile."""
        for is_last in (False, False, True):
            paths = [file for rank in ranks for file in self._files.get(rank, ())]
            try:
                files = [read_span_file(path, since_ns) for path in paths]
            except ProfileError:
                if is_last or all(path.exists() for path in paths):
                    raise
            else:
                if is_last or all(path.exists() for path in paths):
                    return files
            self._list()
        raise AssertionError("unreachable")

    def read(self, rank: int | None = None, *, since_ns: int = 0) -> RunData:
        """Return what is of one training process, or of all; or what ended since, at least."""
        files = self._span_files([rank] if rank is not None else sorted(self._files), since_ns)
        removed = {each for file in files if file.sums for each in file.sums.removed}
        files = [file for file in files if (file.path.name, file.start.monotonic_ns) not in removed]
        files.sort(key=lambda f: (f.rank, f.role, f.worker, f.start.monotonic_ns, f.pid))
        files = [self._with_open_wait(file, files) for file in files]
        strings = ("", *sorted({text for file in files for text in file.strings.values() if text}))
        number = {text: index for index, text in enumerate(strings)}
        spans = np.zeros(sum(len(file.spans) for file in files), PROFILE_DTYPE)
        row = 0
        for process, file in enumerate(files):
            _fill(spans[row : row + len(file.spans)], file, process, number)
            row += len(file.spans)
        processes = tuple(_process(file) for file in files)
        spans, summed = without_gaps(spans, files, strings)
        return RunData(
            path=self.path,
            config=self.config,
            processes=processes,
            spans=_with_whole_batches(with_received(spans, strings), strings),
            strings=strings,
            facts=self._facts,
            ranks=self.ranks,
            rank=rank,
            digests=self._digests,
            machines=tuple(self._machines),
            damaged_machines=tuple(self._damaged_machines),
            stopped=tuple(each for each in self._stopped if rank is None or each.rank == rank),
            summed=summed,
        )

    def requested_ns(self, rank: int) -> int:
        """Return when the loop last began to wait for a batch; 0 on another machine's clock."""
        heads = map(read_head, self._files[rank])
        return max((each.request[0] for each in heads if each.host == host_name()), default=0)

    def _with_open_wait(self, file: SpanFile, files: Sequence[SpanFile]) -> SpanFile:
        """Return a file with the long wait that went on when its process was killed, or does."""
        requested_ns, number, epoch = file.request
        waits = (file.spans["kind"] == Kind.WAIT) & (file.spans["flags"] == 0)  # for a loader
        waits = np.flatnonzero(waits)
        answered_ns = file.spans["end_ns"][waits].max(initial=0)
        # Another process of the rank that began later may have taken the place of this one.
        began = (each.start.monotonic_ns for each in files if each.role == "consumer")
        if file.closed or file.lost or requested_ns <= max([answered_ns, *began]):
            return file
        ended = (each.ended_ns for each in self._facts if each.host == file.host)
        known = [each for each in ended if each is not None]
        machine = of_process(self._machines, _process(file))
        known = known or ([] if machine is None else machine.time_ns[-1:].tolist())
        if max(known, default=0) - requested_ns < HANG_NS:
            return file
        label = max(file.strings) + 1
        wait = (requested_ns, max(known), -1, -1, number, -1, epoch, 0, label, Kind.WAIT, 0, 1, 0)
        place = int(waits[-1]) + 1 if len(waits) else len(file.spans)
        return msgspec.structs.replace(
            file,
            spans=np.insert(file.spans, place, np.array([wait], SPAN_DTYPE)),
            threads=np.insert(file.threads, place, file.threads[place - 1] if place else 0),
            thread_names=file.thread_names or ("MainThread",),
            strings={**file.strings, label: FAILED},
        )


def _check_boots(heads: Sequence[tuple[Path, Head]]) -> None:
    """Refuse two boots of one machine: their clocks cannot be compared."""
    first: dict[str, tuple[Path, Head]] = {}
    for path, identity in heads:
        known_path, known = first.setdefault(identity.host, (path, identity))
        # One boot has several clocks where a container's are moved: those are no two machines'.
        boot, known_boot = (each.boot_id.partition("+")[0] for each in (identity, known))
        if boot and known_boot and boot != known_boot:
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


def _with_whole_batches(spans: NDArray[Any], strings: Sequence[str]) -> NDArray[Any]:
    """Return spans with the making of batches of which the wait alone was recorded, after these."""
    if WHOLE not in strings:
        return spans
    marks = (spans["kind"] == Kind.WAIT) & (spans["label"] == strings.index(WHOLE))
    result = np.repeat(spans, 1 + marks)
    created = np.cumsum(1 + marks)[marks] - 1
    result["label"][created - 1] = 0
    result["kind"][created] = Kind.FUSED
    result["flags"][created] = Flag.ESTIMATED
    result["sample"][created] = -1
    result["detail"][created] = 0
    return result


def _process(file: SpanFile) -> Process:
    same = (
        *("role", "worker", "rank", "pid", "ppid", "host", "boot_id", "lost", "closed"),
        *("once_ns", "own_ns"),
    )
    return Process(
        **{name: getattr(file, name) for name in same},
        anchors=(file.start,) if file.end is None else (file.start, file.end),
        damaged=file.damaged + (file.missing_nbytes > 0),
        threads=file.thread_names,
    )


class FoundRun(msgspec.Struct, frozen=True):
    """A run in a folder of runs."""

    path: Path  # its directory, or the folder of the formats that took turns
    start_ns: int  # when its first process started, by its wall clock; 0 where none did
    facts: tuple[RunFacts | None, ...]  # of each format, in their order; None: cannot be read


def run_paths(path: Path | str) -> tuple[Path, ...]:
    """Return the run directory itself, or those inside one that holds one per format, by name."""
    path = Path(path)
    if (path / "run.json").exists():
        return (path,)
    runs = _inside(path)
    if len(runs) > 1 and _took_turns(list(map(_facts, runs))):
        return runs
    result = find_runs(path)
    if len(result) > 1:
        raise ProfileError(
            f"{path}: holds {len(result)} runs, expected one; 'iobench report {path}' lists them, "
            "name one"
        )
    if not result:
        state = "holds no run" if path.is_dir() else "is no directory"
        raise ProfileError(
            f"{path}: {state}; expected run.json in it or in <format>/, as made by "
            "'iobench profile --out' or 'iobench run --out'"
        )
    return run_paths(result[0].path)


def holds_runs(path: Path) -> bool:
    """Return whether this is a run directory, or a folder of some."""
    return (path / "run.json").is_file() or bool(_inside(path)) or bool(find_runs(path))


def holds_several(path: Path) -> bool:
    """Return whether a folder holds runs that were not made by one profile."""
    try:
        run_paths(path)
    except ProfileError:
        return len(find_runs(path)) > 1
    return False


def find_runs(path: Path) -> tuple[FoundRun, ...]:
    """Return the runs in a folder, newest first; the formats of one profile are one run."""
    result = []
    for folder in sorted(each for each in path.glob("*") if each.is_dir()):
        inside = (folder,) if (folder / "run.json").exists() else _inside(folder)
        known = [(each, _facts(each)) for each in inside]
        known.sort(key=lambda each: (each[1].position if each[1] else None) or 0)
        facts = tuple(each for _, each in known)
        if known and _took_turns(facts):
            result.append(FoundRun(folder, max(map(start_ns, inside)), facts))
        else:
            result += [FoundRun(each, start_ns(each), (one,)) for each, one in known]
    return tuple(sorted(result, key=lambda each: (-each.start_ns, str(each.path))))


def start_ns(path: Path) -> int:
    """Return when the first process of a run started, by its wall clock; 0 if unknown."""
    try:
        run = RunDirectory.open(path)
        return min((read_head(file).wall_ns for file in run.span_files()), default=0)
    except ProfileError:
        return 0


def _inside(path: Path) -> tuple[Path, ...]:
    return tuple(sorted(file.parent for file in path.glob("*/run.json")))


def _facts(path: Path) -> RunFacts | None:
    try:
        return RunFacts.from_config(RunDirectory.open(path).config, path)
    except ProfileError:  # whoever opens it says what is wrong
        return None


def _took_turns(runs: Sequence[RunFacts | None]) -> bool:
    """Return whether runs side by side were made by one profile, as their ``run.json`` says."""
    known = [each for each in runs if each is not None]
    if len(known) < 2:
        return True
    if any(each.turns is not None for each in known):
        return len({each.turns for each in known}) == 1 and bool(known[0].turns)
    places = {each.position for each in known} - {None}
    commands = {(each.kind, each.command) for each in known}
    return len(commands) == 1 and not known[0].is_script and len(places) in (0, len(known))
