"""Folders that hold runs: the formats of one profile in turns, or runs of their own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from iobench.errors import ProfileError
from iobench.recording.run_directory import RunDirectory
from iobench.recording.span_reader import read_head
from iobench.runs.run_facts import RunFacts

if TYPE_CHECKING:
    from collections.abc import Sequence


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
