"""Runs held against counts, a limit or a run that was kept: the gates that only read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from iobench.analysis.run import Run
from iobench.errors import OptionError, ProfileError
from iobench.findings.check.counting import counts_of
from iobench.findings.check.counts import (
    Counts,
    compare_counts,
    expected_counts,
    read_counts,
    write_counts,
)
from iobench.findings.check.exposed_share import exposed_share
from iobench.findings.check.gates import CountsGate, GrowthGate, ShareGate, unlike_machines
from iobench.runs.folders import run_paths

if TYPE_CHECKING:
    from pathlib import Path

    from iobench.analysis.run import RankRun

ONLY_RUN = "run"
"""What a run is called that is alone in its directory."""


def gate_counts(run: Path, counts: Path) -> tuple[CountsGate, ...]:
    """Hold the counts of a run, or of each of several formats, against a file.

    Raises
    ------
    ProfileError, MissingFileError, FileFormatError
        If there is no run whose counts repeat, or no file of counts.
    """
    expected, runs = read_counts(counts), _named_runs(run)
    gates = []
    for name, opened in runs:
        if name not in expected:
            raise ProfileError(
                f"{counts}: expects nothing of {name}, only of {', '.join(expected) or 'no run'}; "
                "rewrite it with --update"
            )
        gates.append(CountsGate(name, compare_counts(expected[name], counts_of(opened))))
    if left := sorted({*expected} - {name for name, _ in runs}):
        raise ProfileError(
            f"{counts}: expects {', '.join(left)} too, which {run} does not have; profile all "
            "formats, or rewrite it with --update"
        )
    return tuple(gates)


def keep_counts(run: Path, counts: Path) -> dict[str, Counts]:
    """Write the counts of a run to a file; what is in it already is replaced.

    Raises
    ------
    ProfileError
        If there is no run whose counts repeat, or it did not come to its end.
    StorageError
        If the file cannot be written.
    """
    found = {}
    for name, opened in _named_runs(run):
        told = counts_of(opened)
        processes = opened.data.processes
        if any(each.role == "consumer" and not each.closed for each in processes):
            raise ProfileError(
                f"{opened.path}: a training process was killed or is still running, so its counts "
                "are not reproducible; expected a run that has finished"
            )
        found[name] = expected_counts(told)
    write_counts(counts, found)
    return found


def gate_shares(run: Path, limit: float) -> tuple[ShareGate, ...]:
    """Hold the exposed share of each training process of each format against a limit."""
    return tuple(
        ShareGate(_name(name, each), exposed_share(each), limit)
        for name, opened in _named_runs(run)
        for each in opened
    )


def gate_growth(
    run: Path, stored: Path, margin: float, *, any_machine: bool = False
) -> tuple[GrowthGate, ...]:
    """Hold the exposed time per sample of a run against that of one that was kept.

    Raises
    ------
    OptionError
        If they were measured on machines that are not alike, unless ``any_machine`` says so; or if
        they are of other datasets, or have other formats or training processes.
    """
    new, old = dict(_named_runs(run)), dict(_named_runs(stored))
    if new.keys() != old.keys():
        raise OptionError(
            f"{stored}: has {', '.join(old)}, but {run} has {', '.join(new)}; "
            "expected the same formats"
        )
    gates = []
    for name, opened in new.items():
        before = old[name]
        datasets = [each.about.dataset for each in (opened, before)]
        if datasets[0] != datasets[1]:
            raise OptionError(
                f"{stored}: dataset is {datasets[1]}, but {run} has {datasets[0]}; expected the "
                "same dataset"
            )
        unlike = unlike_machines(opened.about.machine, before.about.machine)
        if unlike and not any_machine:
            raise OptionError(
                f"{stored}: was measured on another machine ({'; '.join(unlike)}); compare times "
                "from similar machines, or pass --any-machine"
            )
        if opened.ranks != before.ranks:
            raise OptionError(
                f"{stored}: has {len(before)} training processes, but {run} has {len(opened)}; "
                "expected the same number"
            )
        for each in opened:
            found, kept = exposed_share(each), exposed_share(before.of_rank(each.rank))
            if "whole" not in (found.window, kept.window) and found.window != kept.window:
                has, lacks = (stored, run) if kept.window == "recurring" else (run, stored)
                raise OptionError(
                    f"{has}: has complete epochs after the first, which include their start-up, "
                    f"and {lacks} has none; expected as many epochs in both"
                )
            gates.append(GrowthGate(_name(name, each), found, kept, margin))
    return tuple(gates)


def _named_runs(run: Path) -> list[tuple[str, Run]]:
    """Return the runs in a directory: one, or one for each format by its name."""
    paths = run_paths(run)
    if paths == (run,):
        return [(ONLY_RUN, Run(run))]
    return [(path.name, Run(path)) for path in paths]


def _name(name: str, run: RankRun) -> str:
    return name if run.is_alone else f"{name}, rank {run.rank}"
