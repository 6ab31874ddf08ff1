"""Options that name what is loaded and how: the command line declares them, advice varies them.

Both read this table, so that no command is proposed that is not understood.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from iobench.errors import OptionError

__all__ = [
    "NOT_OF_STORES",
    "OF_PROFILE",
    "OF_SOURCE",
    "OF_VALUES",
    "SHARD_SIZE",
    "CommandOption",
    "convert_words",
    "parse_format",
    "split_formats",
]


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
        CommandOption(
            "--format",
            "source, zarr, tfrecord, numpy; several take turns, with commas or repeated. What "
            "convert stores otherwise stands behind a colon: zarr:codec=blosc-lz4,dtype=float16. "
            "[default: source; of stores alone none]",
            "FORMAT",
        ),
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
        CommandOption("--batch-size", "Samples a batch. [default: the published one, else 1]"),
        CommandOption("--batches", "Batches to run. [default: 200, or 60 s of steady state]"),
        CommandOption("--duration", "Seconds of steady state to run at most."),
        CommandOption("--epochs", "Passes over the samples, instead of batches."),
        CommandOption(
            "--evaluate",
            "A split that is evaluated after each epoch over the split train, or --split.",
        ),
        CommandOption(
            "--compute",
            "Time of a training step: published, none, or e.g. 25ms; unet trains a small model.",
        ),
        CommandOption(
            "--batches-per-step", "Batches that a step takes. [default: as published, else 1]"
        ),
        CommandOption(
            "--stage",
            "Copy stores below this folder first, as $TMPDIR, and load the copies; the time it "
            "takes is in the report.",
            "DIR",
        ),
        CommandOption(
            "--cache", "Page cache: as-is, warm (read first) or cold (evicted every epoch)."
        ),
        CommandOption(
            "--device",
            "Where batches are copied to: cuda, cuda:N (AMD's too), xpu, none, or auto: an "
            "accelerator that is there.",
        ),
        CommandOption(
            "--window", "Samples of several items: offsets of inputs:targets, --window=-1,0:1."
        ),
        CommandOption("--spool", "Node-local folder for spans until they are gathered."),
        CommandOption("--detail", "Spans per sample, per batch, or auto: what costs under 1 %."),
        CommandOption(
            "--darshan",
            "Trace every read with Darshan, if a runtime is there; or logs of your own Darshan, "
            "repeatable. [default: off]",
            "auto|off|LOG",
        ),
        CommandOption(
            "--energy",
            "Read what counters of energy of GPUs and processors may be read, 10 times a second.",
            "auto|off",
        ),
        CommandOption(
            "--monitor",
            "Look at CPUs, memory, disks and network so many times a second, 1 to 10; auto: 2.",
            "auto|off|HZ",
        ),
        CommandOption(
            "--limits",
            "Seconds for probing the files as the run reads them, before and after it. [default: "
            "2, or IOBENCH_LIMITS]",
            "off|SECONDS",
        ),
        CommandOption("--out", "The run directory. [default: iobench-runs/NAME-N]"),
        CommandOption("--name", "What the run is called: in reports, by trackers, its directory."),
        CommandOption(
            "--digests",
            "Keep a digest of every sample, for iobench compare (needs xxhash).",
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
    "keep-bits": re.compile(r".+=\d+"),
    "max-error": re.compile(r".+=[^=]+"),
    "range": re.compile(r".+=[^=]+:[^=]+"),
}
"""Options of `iobench convert` for how values are stored; what else may follow one, after a comma.
"""
SHARD_SIZE: Final = "shard-size"
OF_PARTS: Final = {"inner-chunk": re.compile(r".+=\d+")}
"""Options of formats whose value has commas."""
OF_FORMATS: Final = ("codec", "encoding", "inner-chunk", "pack")
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
                f"--format {text}: {piece} is an option of nothing; write it behind a format and "
                f"a colon, as {item or 'zarr'}:{piece}"
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
                f"--format {item}: {piece!r} is no option; expected NAME=VALUE, as "
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
