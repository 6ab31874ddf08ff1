"""Runs set side by side: which, what was different about them, and whose samples."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from iobench.analysis.samples_compared import compare_seen
from iobench.analysis.step_sums import PARTS
from iobench.errors import OptionError
from iobench.json_files import read_json
from iobench.profiles.folders import run_paths
from iobench.report.comparable import refuse
from iobench.report.compare_figures import PairComparison, compare_pair
from iobench.report.measured_runs import OF_MACHINE, MeasuredRun, measure_run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iobench.analysis.figures import Window
    from iobench.analysis.samples_compared import SamplesComparison

__all__ = ["ComparedRun", "Comparison", "compare_runs"]

MOST: Final = 8
"""Runs, or groups of them, that fit beside each other."""
MOST_GROUPED: Final = 64
NOT_CONFIGURED: Final = {*OF_MACHINE, "seed"}
"""What runs of one configuration may differ in: where they were made, and in which order."""


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """One run of a comparison, or several of one configuration.

    Parameters
    ----------
    members : tuple of MeasuredRun
        At least one.
    """

    members: tuple[MeasuredRun, ...]

    @property
    def name(self) -> str:
        """What was given: its directory, or those of all."""
        return ", ".join(member.name for member in self.members)

    @property
    def first(self) -> MeasuredRun:
        """The one whose configuration stands for all."""
        return self.members[0]

    @property
    def facts(self) -> dict[str, Any]:
        """What may explain a difference, by name; a list of what several runs do not share."""
        told = [member.told for member in self.members]
        found = {}
        for name in dict.fromkeys(name for each in told for name in each):
            values = [each.get(name) for each in told]
            alike = all(value == values[0] for value in values)
            found[name] = values[0] if alike else values
        return found


@dataclass(frozen=True, slots=True)
class Comparison:
    """Runs, and each of them against the first.

    Parameters
    ----------
    runs : tuple of ComparedRun
        Two or more.
    pairs : tuple of PairComparison
        One for each run but the first.
    samples : tuple of SamplesComparison
        The same; empty for groups of runs.
    waved : tuple of str
        Why they would not have been compared, had nobody insisted.
    window : str
        What part of the runs figures are of, as `Exposure` knows it: the first that all have.
    grouped : bool
    """

    runs: tuple[ComparedRun, ...]
    pairs: tuple[PairComparison, ...]
    samples: tuple[SamplesComparison, ...]
    waved: tuple[str, ...]
    window: Window
    grouped: bool

    @property
    def differences(self) -> dict[str, tuple[Any, ...]]:
        """What is not the same in all runs, by name, with the value of each; None if untold."""
        facts = [run.facts for run in self.runs]
        names = dict.fromkeys(name for each in facts for name in each)
        found = {name: tuple(each.get(name) for each in facts) for name in names}
        return {
            name: values
            for name, values in found.items()
            if any(value != values[0] for value in values)
            or (self.grouped and any(isinstance(value, list) for value in values))
        }


def compare_runs(paths: Sequence[Path], *, anyway: bool = False, group: bool = False) -> Comparison:
    """Read runs, and set them side by side.

    Parameters
    ----------
    paths : sequence of Path
        Run directories, or folders of runs made in turns.
    anyway : bool
        Compare also what is refused otherwise, and show the figures withheld.
    group : bool
        Take runs of one configuration together: intervals are then of what differs between runs.

    Raises
    ------
    OptionError
        If there are too few or too many runs.
    ProfileError
        If one cannot be analysed, or comparing them would say nothing.
    """
    found = [each for path in paths for each in _ordered(run_paths(path))]
    most = MOST_GROUPED if group else MOST
    if not 2 <= len(found) <= most:
        raise OptionError(
            f"iobench compare: expected 2 to {most} runs, got {len(found)}; --quarterly makes one "
            "table of any number"
        )
    measured = [measure_run(path) for path in found]
    waved = refuse(measured, anyway=anyway)
    runs = _grouped(measured) if group else [ComparedRun((each,)) for each in measured]
    members = [member for run in runs for member in run.members]
    window = next(each for each in PARTS if all(run.sums[each] is not None for run in members))
    first, *others = runs
    return Comparison(
        runs=tuple(runs),
        pairs=tuple(
            compare_pair(first.members, other.members, window=window, anyway=anyway)
            for other in others
        ),
        samples=()
        if group
        else tuple(compare_seen(first.first.seen, other.first.seen) for other in others),
        waved=waved,
        window=window,
        grouped=group,
    )


def _ordered(paths: tuple[Path, ...]) -> list[Path]:
    """Return the runs of a folder in the order they were asked for."""
    if len(paths) == 1:
        return list(paths)

    def position(path: Path) -> int:
        try:
            value = read_json(path / "run.json", finite=True).get("position", 0)
        except (OSError, ValueError, AttributeError):
            return 0  # whoever opens it says what is wrong
        return value if isinstance(value, int) else 0

    return sorted(paths, key=position)


def _grouped(runs: Sequence[MeasuredRun]) -> list[ComparedRun]:
    groups: dict[str, list[MeasuredRun]] = {}
    for run in runs:
        told = {name: value for name, value in run.told.items() if name not in NOT_CONFIGURED}
        groups.setdefault(json.dumps(told, sort_keys=True, default=str), []).append(run)
    few = next((members[0] for members in groups.values() if len(members) < 2), None)
    if few is not None:
        raise OptionError(
            f"--group: {few.name} is the only run of its configuration{_unlike(few, runs)}, "
            "expected two or more of each; leave --group out, or name more runs"
        )
    if not 2 <= len(groups) <= MOST:
        raise OptionError(
            f"--group: these runs have {len(groups)} configuration(s), expected 2 to {MOST}"
        )
    return [ComparedRun(tuple(members)) for members in groups.values()]


def _unlike(run: MeasuredRun, runs: Sequence[MeasuredRun]) -> str:
    """Return in what a run differs from the one of another configuration that is most like it."""
    told = [
        [
            f"{name} {run.told.get(name, 'unknown')}, not {other.told.get(name, 'unknown')}"
            for name in dict.fromkeys((*run.told, *other.told))
            if name not in NOT_CONFIGURED and run.told.get(name) != other.told.get(name)
        ]
        for other in runs
        if other is not run
    ]
    least = min(told, key=len)
    return f" ({'; '.join(least)})"
