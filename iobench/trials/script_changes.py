"""A script run as it was and with its environment changed, in turns."""

from __future__ import annotations

import os
import shlex
import sys
from typing import TYPE_CHECKING, Final

from iobench.errors import TrialError
from iobench.findings.advice.levers import ENVIRONMENT
from iobench.masking import mask_words
from iobench.trials.configurations import changes_in_turns, time_of_sample
from iobench.trials.limited_run import run_limited

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from iobench.findings.advice.figures import AdvisedChange, TriedChange
    from iobench.sources.request import Screen

IOBENCH_RUN: Final = (sys.executable, "-P", "-m", "iobench", "run", "--no-report")


def can_try_script(change: AdvisedChange) -> bool:
    """Tell whether a change of a script is one of its environment alone."""
    settings = change.candidate.settings
    return bool(settings) and settings.keys() <= ENVIRONMENT


def try_script_changes(
    words: Sequence[str],
    changes: Sequence[AdvisedChange],
    folder: Path,
    screen: Screen,
    *,
    rounds: int,
) -> list[TriedChange]:
    """Run a script, each change of its environment, and the script again, in turns.

    Parameters
    ----------
    words : sequence of str
        Of its command; it runs where this process does.
    changes : sequence of AdvisedChange
        Of which `can_try_script` holds.
    folder : Path
        Where the run directories go.
    rounds : int
        Turns of each, after one that does not count.

    Raises
    ------
    TrialError
        If a run fails or delivers nothing.
    """
    command = shlex.join(mask_words(words))

    def arm(name: str, number: int | str, told: Mapping[str, object]) -> Callable[[int], float]:
        environment = os.environ | {key: str(value) for key, value in told.items()}

        def run(round: int) -> float:
            out = folder / f"{number}-{round}"
            recorded = [*IOBENCH_RUN, "--out", str(out), "--", *words]
            log = folder / f"{number}-{round}.log"
            ended = run_limited(recorded, log, environment=environment)
            if ended.code:
                raise TrialError(f"{command}: {ended.how}, expected 0")
            return time_of_sample(out, name)

        return run

    told = [dict(change.candidate.settings) for change in changes]
    names = ["as it is", *(" ".join(f"{k}={v}" for k, v in each.items()) for each in told)]
    arms = [
        arm(name, number, each)
        for number, (name, each) in enumerate(zip(names, [{}, *told], strict=True))
    ]
    screen.note(f"running in turns: {command}")
    arm("as it is", "warm-up", {})(0)  # what only a first run pays for
    return changes_in_turns(arms, arm("as it is", "again", {}), names, changes, screen, rounds)
