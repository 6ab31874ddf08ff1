"""Options that name what is loaded and how: the command line declares them, advice varies them.

Both read this table, so that no command is proposed that is not understood.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["OF_PROFILE", "OF_SOURCE", "CommandOption"]


@dataclass(frozen=True, slots=True)
class CommandOption:
    """One option of a command.

    Parameters
    ----------
    name : str
        As it is spelled.
    help : str
    metavar : str or None
        What stands for its value.
    is_flag : bool
        Whether it has no value.
    """

    name: str
    help: str
    metavar: str | None = None
    is_flag: bool = False


OF_SOURCE: Final = {
    each.name: each
    for each in (
        CommandOption("--data-dir", "The dataset's files: a CliMetLab mirror, or a flat folder."),
        CommandOption(
            "--files",
            "Your own layout of the dataset: paths with {year}, {month}, {day}; quoted.",
            "GLOB",
        ),
        CommandOption("--option", "An option of the dataset, NAME=VALUE; repeatable."),
        CommandOption("--split", "Take one split's samples only, e.g. train."),
        CommandOption(
            "--split-by",
            "Samples by a coordinate, [SPLIT:]COORDINATE=FIRST/LAST, as train:time=2010/2015-12; "
            "repeatable.",
        ),
        CommandOption(
            "--allow-gaps", "--split-by: though dates of an interval are missing.", is_flag=True
        ),
        CommandOption(
            "--sample-dim",
            "Own files: the dimension along which samples lie; time,number: each date and member.",
        ),
        CommandOption("--variables", "Own files: the variables to take, with commas."),
        CommandOption(
            "--store-dir",
            "Where stores, stand-ins and indexes go. [default: $IOBENCH_STORE_DIR, ...]",
        ),
        CommandOption(
            "--download",
            "Fetch files that are not at hand, through the CliMetLab plugin.",
            is_flag=True,
        ),
        CommandOption("--download-timeout", "Seconds the download may take."),
        CommandOption("--tiny", "Use the small stand-in that tests use.", is_flag=True),
        CommandOption("--scale", "Use a stand-in with this share of the real samples."),
        CommandOption("--seed", "Of the stand-in; in a profile also of the order."),
    )
}
"""Options of `iobench profile` that `iobench convert` has as well, by name."""
OF_PROFILE: Final = OF_SOURCE | {
    each.name: each
    for each in (
        CommandOption("--format", "source, zarr, tfrecord, numpy; several with commas take turns."),
        CommandOption(
            "--pipeline",
            "Who loads the original files: own; upstream: the application's own code, of files of "
            "yours a plain xarray loop; climetlab: the real plugin. Several with commas take "
            "turns. auto: own,upstream of your NetCDF files and Zarr stores, else own.",
        ),
        CommandOption(
            "--framework",
            "native: threads that fill batches ahead; workers: our worker processes; torch: "
            "torch's DataLoader; tensorflow: tf.data; dali: DALI's readers. Several with commas "
            "take turns.",
        ),
        CommandOption(
            "--workers", "Processes or threads that load; 0: the loop. [default: usable CPUs]"
        ),
        CommandOption(
            "--prefetch", "Batches each process, or all threads, may be ahead. [default: 2]"
        ),
        CommandOption("--batches", "Batches to run. [default: 200, or 60 s of steady state]"),
        CommandOption("--duration", "Seconds of steady state to run at most."),
        CommandOption("--epochs", "Passes over the samples, instead of batches."),
        CommandOption("--compute", "Time of a training step: published, none, or e.g. 25ms."),
        CommandOption(
            "--batches-per-step", "Batches that a step takes. [default: as published, else 1]"
        ),
        CommandOption(
            "--cache", "Page cache: as-is, warm (read first) or cold (evicted every epoch)."
        ),
        CommandOption("--out", "The run directory. [default: iobench-runs/NAME-N]"),
        CommandOption("--name", "What the run is called: in reports, by trackers, its directory."),
        CommandOption(
            "--digests",
            "Keep a digest of every sample, for iobench compare (needs xxhash).",
            is_flag=True,
        ),
        CommandOption("--json", "Print the result as JSON instead of a report.", is_flag=True),
    )
}
"""Those of `iobench profile` that advice sets, leaves out or has to know to have no value."""
