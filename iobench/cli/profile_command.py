"""``iobench profile``: where a training loop waits for a dataset's samples, and why."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from iobench.cli.app import COMMANDS
from iobench.cli.command import make_command, parsed
from iobench.command_options import QUIET
from iobench.errors import OptionError

if TYPE_CHECKING:
    from iobench.profiling.config import RunConfig

SEED: Final = "IOBENCH_SEED"
"""Environment: of the order of samples; 0 by default."""
RUN_NAME: Final = "IOBENCH_RUN_NAME"
"""Environment: what a run is called."""


def profile(*, json: bool, **values: Any) -> None:
    """Profile what is named, and print the report."""
    from iobench.cli.report_command import print_report
    from iobench.cli.screen import TerminalScreen
    from iobench.profiling.profile_run import profile as run_profile

    screen = TerminalScreen()
    words = (word for word in sys.argv[1:] if word != QUIET.name)
    run = run_profile(_config(values, ("iobench", *words)), screen)
    print_report(run, json=json)
    if json:
        screen.note(f"kept in {run}; show this report again with: iobench report {run}")
        screen.note(f"as a page with its timeline: iobench report {run} --html report.html")


def profile_config(words: Sequence[str], environ: Mapping[str, str] = os.environ) -> RunConfig:
    """Return what ``iobench profile`` would be asked to do with these words behind it."""
    values = parsed(make_command("profile", COMMANDS["profile"]), words)
    del values["json"]
    return _config(values, ("iobench", "profile", *words), environ)


def checked_config(words: Sequence[str], environ: Mapping[str, str]) -> RunConfig:
    """Return the same, of words that nobody typed: what is wrong with them is an OptionError."""
    try:
        return profile_config(words, environ)
    except click.UsageError as error:
        raise OptionError(" ".join(error.format_message().split())) from error


def _config(
    values: dict[str, Any], command: tuple[str, ...], environ: Mapping[str, str] = os.environ
) -> RunConfig:
    from iobench.profiling.config import RunConfig
    from iobench.recording.machine_head import ENERGY, MONITOR, is_on
    from iobench.registry import SOURCE
    from iobench.sources.opening import split_stores

    sources, stores = split_stores(values.pop("targets"))
    formats = values.pop("formats")
    if formats is None:
        formats = (SOURCE,) if sources else ()
    seed = environ.get(SEED, "0")
    if not seed.isdecimal():
        raise OptionError(f"{SEED} {seed}: expected 0 or more")
    for variable in (ENERGY, MONITOR):
        is_on(variable, environ)  # refuses other words before anything is made
    return RunConfig(
        targets=sources,
        stores=stores,
        formats=formats,
        command=command,
        seed=int(seed),
        name=environ.get(RUN_NAME),
        **values,
    )
