"""Options that name what is loaded and how: the command line declares them, advice varies them.

Both read this table, so that no command is proposed that is not understood.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from iobench.errors import OptionError
from iobench.frozen import frozen


@frozen
class CommandOption:
    """One option of a command.

    Parameters
    ----------
    name : str
        As it is spelled.
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
        CommandOption(
            "--data-dir",
            "The dataset's files: a CliMetLab mirror, or a flat folder; here or s3://bucket/....",
            "DIR",
        ),
        CommandOption(
            "--files",
            "Your own layout of the dataset: paths or URLs with {year}, {month}, {day}; quoted.",
            "GLOB",
        ),
        CommandOption("--option", "An option of the dataset, NAME=VALUE; repeatable."),
        CommandOption("--split", "Use only the samples of one split, e.g. train."),
        CommandOption(
            "--split-by",
            "Select samples by a coordinate, [SPLIT:]COORDINATE=FIRST/LAST, e.g. "
            "train:time=2010/2015-12; repeatable.",
        ),
        CommandOption(
            "--allow-gaps", "--split-by: accept intervals with missing dates.", is_flag=True
        ),
        CommandOption(
            "--sample-dim",
            "Own files: the dimension along which samples lie, or several, e.g. time,number for "
            "each date and member.",
        ),
        CommandOption("--variables", "Own files: the variables to use, separated by commas."),
        CommandOption(
            "--store-dir",
            "Folder for stores, stand-ins and indexes. [default: $IOBENCH_STORE_DIR, ...]",
        ),
        CommandOption(
            "--download",
            "Download missing files with the CliMetLab plugin.",
            is_flag=True,
        ),
        CommandOption("--download-timeout", "Seconds the download may take."),
        CommandOption("--tiny", "Use the small stand-in that tests use.", is_flag=True),
        CommandOption("--scale", "Use a stand-in with this share of the real samples."),
        CommandOption("--seed", "Seed of the stand-in and, in a profile, of the sample order."),
    )
}
"""Options of `iobench profile` that `iobench convert` has as well, by name."""
OF_PROFILE: Final = OF_SOURCE | {
    each.name: each
    for each in (
        CommandOption(
            "--format",
            "source, zarr, tfrecord or numpy; several (separated by commas or repeated) take "
            "turns. Options of iobench convert follow a colon: zarr:codec=blosc-lz4,dtype=float16. "
            "[default: source; none if only stores are given]",
            "FORMAT",
        ),
        CommandOption(
            "--pipeline",
            "What loads the original files: own (iobench), upstream (a plain loop of xarray, or of "
            "tf.data for TFRecords) or climetlab (the real plugin). Several, "
            "separated by commas, take turns. auto: own,upstream for your NetCDF files and Zarr "
            "stores, else own.",
        ),
        CommandOption(
            "--framework",
            "native: threads that fill batches ahead; workers: our worker processes; torch: "
            "torch's DataLoader; tensorflow: tf.data; dali: DALI's readers. Several, separated by "
            "commas, take turns.",
        ),
        CommandOption(
            "--workers",
            (
                "Loading processes or threads; 0: the training loop itself loads. [default: "
                "usable CPUs]"
            ),
        ),
        CommandOption(
            "--prefetch",
            (
                "Prefetch: batches that each process, or all threads together, may be ahead. "
                "[default: 2]"
            ),
        ),
        CommandOption("--batch-size", "Samples per batch. [default: as published, else 1]"),
        CommandOption("--batches", "Batches to run. [default: 200, or 60 s of steady state]"),
        CommandOption("--duration", "Seconds of steady state to run at most."),
        CommandOption("--epochs", "Passes over the samples, instead of batches."),
        CommandOption(
            "--evaluate",
            "Evaluate this split after each epoch of training on the split train, or --split.",
        ),
        CommandOption("--compute", "Time of a training step: published, none, or e.g. 25ms."),
        CommandOption("--batches-per-step", "Batches per step. [default: as published, else 1]"),
        CommandOption(
            "--cache", "Page cache: as-is, warm (read first) or cold (evicted every epoch)."
        ),
        CommandOption(
            "--device",
            "Device to copy batches to: cuda, cuda:N (also AMD), xpu, none, or auto: an "
            "accelerator if one is found.",
        ),
        CommandOption(
            "--window",
            (
                "Make each sample from several items: offsets of inputs and targets, "
                "--window=-1,0:1."
            ),
        ),
        CommandOption("--spool", "Node-local folder for spans until they are gathered."),
        CommandOption(
            "--detail", ("Spans per sample, per batch, or auto: as detailed as costs under 1 %.")
        ),
        CommandOption(
            "--darshan",
            "auto: trace every read with Darshan, if its runtime is found; or logs of your own "
            "Darshan, repeatable. [default: off]",
            "auto|off|LOG",
        ),
        CommandOption(
            "--energy",
            "Read the accessible energy counters of GPUs and processors twice per second.",
            "auto|off",
        ),
        CommandOption(
            "--monitor",
            "Sample CPUs, disks and network twice per second, memory every 5 seconds.",
            "auto|off",
        ),
        CommandOption(
            "--limits",
            "Seconds for probing the files, in the way that the run reads them, before and after "
            "it. [default: 2, or IOBENCH_LIMITS]",
            "off|SECONDS",
        ),
        CommandOption("--out", "The run directory. [default: iobench-runs/NAME-N]"),
        CommandOption("--name", "Name of the run, for reports, trackers and its directory."),
        CommandOption(
            "--digests",
            "Keep a digest of every batch, for iobench compare (needs xxhash).",
            is_flag=True,
        ),
        CommandOption("--json", "Print the result as JSON instead of a report.", is_flag=True),
        CommandOption("--full", "Print all of the report, not one screen of it.", is_flag=True),
    )
}
"""All of `iobench profile`, which advice and the recipes of suites know by name."""
NOT_OF_STORES: Final = (
    *("--format", "--pipeline", "--data-dir", "--files", "--option", "--sample-dim"),
    *("--variables", "--download", "--tiny", "--scale"),
)
"""What says how samples are made: of no meaning where all there is are finished stores."""
OF_VALUES: Final = {
    "dtype": re.compile(r".+=[A-Za-z][A-Za-z0-9]*"),
    "range": re.compile(r".+=[^=]+:[^=]+"),
}
"""Options of `iobench convert` for how values are stored; what else may follow one, after a comma.
"""
SHARD_SIZE: Final = "shard-size"
OF_PARTS: Final = {"inner-chunk": re.compile(r".+=\d+")}
"""Options of formats whose value has commas."""
OF_FORMATS: Final = ("codec", "encoding", "inner-chunk")
"""Options of our formats, which `iobench convert` has by their names."""


def split_formats(texts: Sequence[str]) -> tuple[str, ...]:
    """Return the items of ``--format``, given several times, with commas, or both.

    A container begins an item; what has a ``=`` before any ``:`` belongs to the item before it, so
    that ``source,zarr:codec=blosc-lz4,inner-chunk=y=256,x=256,zarr`` are three.

    Raises
    ------
    OptionError
        If options belong to nothing.
    """
    return tuple(item for text in texts for item in _items(text))


def _items(text: str) -> Iterator[str]:
    item = ""
    for piece in filter(None, (each.strip() for each in text.split(","))):
        colon, equals = piece.find(":"), piece.find("=")
        if equals < 0 or 0 <= colon < equals:
            if item:
                yield item
            item = piece
        elif ":" in item:
            item += f",{piece}"
        else:
            raise OptionError(
                f"--format {text}: {piece} is an option without a format; write it after a format "
                f"and a colon, as {item or 'zarr'}:{piece}"
            )
    if item:
        yield item


def parse_format(item: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Return the container that an item of `split_formats` names, and its options in their order.

    Raises
    ------
    OptionError
        If one is no ``NAME=VALUE``.
    """
    name, colon, told = item.partition(":")
    options: list[tuple[str, str]] = []
    known = {*OF_VALUES, *OF_FORMATS, SHARD_SIZE}
    for piece in told.split(",") if colon else ():
        key, equals, value = piece.partition("=")
        before = options[-1] if options else ("", "")
        follows = (OF_VALUES | OF_PARTS).get(before[0])
        if key not in known and follows is not None and follows.fullmatch(piece):
            if before[0] in OF_PARTS:
                options[-1] = before[0], f"{before[1]},{piece}"
            else:
                options.append((before[0], piece))
        elif equals and key and value:
            options.append((key, value))
        else:
            raise OptionError(
                f"--format {item}: {piece!r} is not an option; expected NAME=VALUE, e.g. "
                "zarr:codec=blosc-lz4,dtype=float16"
            )
    return name, tuple(options)


def convert_words(item: str) -> list[str]:
    """Return how `iobench convert` is told an item of ``--format``."""
    name, options = parse_format(item)
    words = ["--to", name]
    for key, value in options:
        if key in OF_VALUES or key in OF_FORMATS or key == SHARD_SIZE:
            words += [f"--{key}", value]
        else:
            words += ["--format-option", f"{key}={value}"]
    return words
