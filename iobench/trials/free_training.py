"""A script's training as it is and with data that are free, in turns."""

from __future__ import annotations

import shlex
import subprocess
import sys
from typing import TYPE_CHECKING

from iobench.analysis.run import open_runs
from iobench.errors import TrialError
from iobench.findings.free_data import WITH_FREE_DATA, steps_per_s
from iobench.trials.interleaving import try_in_turns

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from iobench.findings.advice.proposals import TriedChange
    from iobench.sources.request import Screen
    from iobench.trials.interleaving import Arm


def try_free_data(
    command: Sequence[str], folder: Path, screen: Screen, *, rounds: int
) -> tuple[TriedChange, float]:
    """Run a script as it is, with free data and as it is again; return steps/s with free data."""
    costs: list[float] = []
    free = _arm(command, folder / "free", ("--free-data",))

    def run(round: int) -> float:
        costs.append(free(round))
        return costs[-1]

    arms = (_arm(command, folder / "usual"), run, _arm(command, folder / "again"))
    (tried,) = try_in_turns(arms, [(WITH_FREE_DATA, {}, None)], rounds, screen)
    return tried, len(costs) / sum(costs)


def _arm(command: Sequence[str], folder: Path, options: Sequence[str] = ()) -> Arm:
    """Return what runs the script once more and returns the seconds that a step took."""

    def run(round: int) -> float:
        path = folder / f"{round}"
        words = [sys.executable, "-m", "iobench", "run", "--quiet", "--out", str(path), *options]
        code = _run([*words, "--", *command])
        if code:
            raise TrialError(f"{shlex.join(command)}: expected exit code 0, got {code}")
        exposures = [rank.exposure for each in open_runs(path) for rank in each]
        rates = [steps_per_s(each) for each in exposures if each.asks_loaders]
        known = [rate for rate in rates if rate]
        if not known:
            raise TrialError(f"{shlex.join(command)}: no loader delivered a batch to time")
        return 1 / min(known)  # of its slowest training process

    return run


def _run(words: Sequence[str]) -> int:
    """Run a command whose output is not ours; return its exit code."""
    process = subprocess.Popen(words, stdout=sys.__stderr__)
    try:
        return process.wait()
    except BaseException:
        process.terminate()  # handed on to the script
        process.wait()
        raise
