"""The options of all commands, each declared once: commands, help pages, advice and suites read it.

So no command is proposed, and no recipe taken, whose options are not understood.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from iobench.errors import OptionError


class CommandOption(NamedTuple):
    """One option of a command.

    Parameters
    ----------
    name : str
        As it is spelled; ``--report/--no-report`` for a flag with two spellings.
    kind : str
        What its value is: ``text``, ``int``, ``count`` (1 or more), ``float``, ``path`` of this
        machine, ``place`` (a path or an address), ``size``, ``names`` with commas, ``flag``,
        ``schema`` (a flag that prints the schema, and nothing else); ``texts``, ``paths``,
        ``formats`` and ``pairs`` (``NAME=VALUE``) may be repeated.
    field : str
        The argument of the command that gets it; by default the name with underscores.
    """

    name: str
    help: str
    kind: str = "text"
    default: Any = None
    metavar: str | None = None
    field: str = ""
    required: bool = False

    @property
    def is_flag(self) -> bool:
        """Whether it has no value."""
        return self.kind in ("flag", "schema")


QUIET: Final = CommandOption("--quiet", "Print no notes and no progress on stderr.", "flag")
"""Of every command, as ``--help`` is."""
JSON: Final = CommandOption("--json", "Print JSON instead of text.", "flag")
MARKDOWN: Final = CommandOption("--markdown", "Print it as Markdown, for an issue.", "flag")
HTML: Final = CommandOption("--html", "Write it as an HTML page.", "path", metavar="FILE")

DATA_DIR: Final = CommandOption(
    "--data-dir",
    "The dataset's files: a CliMetLab mirror, or a flat folder.",
    "place",
    metavar="DIR",
)
DATASET_OPTION: Final = CommandOption(
    "--option", "An option of the dataset, NAME=VALUE; repeatable.", "pairs", field="options"
)
STORE_DIR: Final = CommandOption(
    "--store-dir",
    "Folder for stores, stand-ins and indexes. [default: $IOBENCH_STORE_DIR, ...]",
    "path",
)
TINY: Final = CommandOption("--tiny", "Use the small stand-in that tests use.", "flag")

SOURCE: Final = (
    DATA_DIR,
    DATASET_OPTION,
    CommandOption("--split", "Use only the samples of one split, e.g. train."),
    CommandOption(
        "--split-by",
        "Select samples by a coordinate, [SPLIT:]COORDINATE=FIRST/LAST, e.g. "
        "train:time=2010/2015-12; repeatable.",
        "texts",
    ),
    CommandOption(
        "--sample-dim",
        "Own files: the dimension along which samples lie, or several, e.g. time,number for "
        "each date and member.",
    ),
    CommandOption("--variables", "Own files: the variables to use, separated by commas.", "names"),
    STORE_DIR,
    CommandOption("--download", "Download missing files with the CliMetLab plugin.", "flag"),
    TINY,
)
"""What names the source of samples, in `iobench profile` and `iobench convert`."""
DIGESTS: Final = CommandOption(
    "--digests", "Keep a digest of every batch, for iobench compare (needs xxhash).", "flag"
)
DARSHAN: Final = CommandOption(
    "--darshan",
    "auto: trace every read with Darshan, if its runtime is found; or logs of your own "
    "Darshan, repeatable.",
    "texts",
    ("off",),
    metavar="auto|off|LOG",
)
FULL: Final = CommandOption("--full", "Print all of the report, not one screen of it.", "flag")

PROFILE: Final = (
    CommandOption(
        "--format",
        "source, zarr, tfrecord or numpy; several (separated by commas or repeated) take "
        "turns. Options of iobench convert follow a colon: zarr:codec=blosc-lz4,dtype=float16. "
        "[default: source; none if only stores are given]",
        "formats",
        metavar="FORMAT",
        field="formats",
    ),
    CommandOption(
        "--pipeline",
        "What loads the original files: own (iobench) or upstream (a plain loop of xarray, or of "
        "tf.data for TFRecords). Several, separated by commas, take turns. auto: own,upstream for "
        "your NetCDF files and Zarr stores, else own.",
        "names",
        "auto",
        field="pipelines",
    ),
    CommandOption(
        "--framework",
        "native: threads that fill batches ahead; workers: our worker processes; torch: "
        "torch's DataLoader; tensorflow: tf.data; dali: DALI's readers. Several, separated by "
        "commas, take turns.",
        default="native",
    ),
    CommandOption(
        "--workers",
        "Loading processes or threads; 0: the training loop itself loads. [default: usable CPUs]",
        "int",
    ),
    CommandOption(
        "--prefetch",
        "Prefetch: batches that each process, or all threads together, may be ahead. [default: 2]",
        "int",
    ),
    CommandOption("--batch-size", "Samples per batch. [default: as published, else 1]", "int"),
    CommandOption("--batches", "Batches to run. [default: 200, or 60 s of steady state]", "int"),
    CommandOption(
        "--duration", "Seconds of steady state to run at most.", "float", field="duration_s"
    ),
    CommandOption("--epochs", "Passes over the samples, instead of batches.", "int"),
    CommandOption(
        "--compute",
        "Time of a training step: published, none, e.g. 25ms, or cpu:25ms on a CPU.",
        default="published",
    ),
    CommandOption(
        "--device",
        "Device to copy batches to: cuda, cuda:N (also AMD), none, or auto: an accelerator if one "
        "is found.",
        default="auto",
    ),
    CommandOption(
        "--cache",
        "Page cache: as-is, warm (read first) or cold (evicted every epoch).",
        default="as-is",
    ),
    *SOURCE,
    CommandOption(
        "--window",
        "Make each sample from several items: offsets of inputs and targets, --window=-1,0:1.",
    ),
    CommandOption("--out", "The run directory. [default: iobench-runs/NAME-N]", "path"),
    DIGESTS,
    DARSHAN,
    CommandOption(
        "--limits",
        "Probe the storage before it; auto: for $IOBENCH_LIMITS, else 2 s.",
        default="auto",
        metavar="off|auto|SECONDS",
    ),
    CommandOption("--json", "Print the result as JSON instead of a report.", "flag"),
)

CONVERT: Final = (
    CommandOption(
        "--to", "Store format: zarr, tfrecord or numpy.", metavar="FORMAT", required=True
    ),
    CommandOption("--dry-run", "Print the plan, from a short probe, and write nothing.", "flag"),
    *SOURCE,
    CommandOption(
        "--target-variables",
        "Own files: the target variables of training, separated by commas.",
        "names",
    ),
    CommandOption(
        "--dtype", "Lossy: float16 or int16; VAR=DTYPE for one variable; repeatable.", "texts"
    ),
    CommandOption(
        "--range",
        "Range that int16 covers, VAR=LOW:HIGH; repeatable. [default: that of the data, "
        "found by reading all samples first]",
        "texts",
        field="ranges",
    ),
    CommandOption(
        "--codec",
        "zarr: what encodes each chunk, by numcodecs: zstd, blosc:cname=zstd,clevel=3, lz4; "
        "bitround:keepbits=10,zstd rounds first. [default: none]",
    ),
    CommandOption("--chunk-samples", "zarr: samples of a chunk. [default: 1]", "count"),
    CommandOption(
        "--format-option",
        "An option of the format, NAME=VALUE, as iobench info FORMAT lists them; repeatable.",
        "pairs",
        field="format_options",
    ),
    CommandOption(
        "--shard-size", "Bytes of samples per shard.", "size", "1GiB", field="shard_nbytes"
    ),
    CommandOption(
        "--memory",
        "Memory for samples being made. [default: enough for samples that share chunks; at "
        "least 256MiB, and above that at most a quarter of the free memory]",
        "size",
        field="memory_nbytes",
    ),
    CommandOption(
        "--scratch",
        "Folder for what --memory does not hold, on a disk of this machine. [default: $TMPDIR]",
        "path",
        metavar="DIR",
    ),
    CommandOption(
        "--passes",
        "How often chunks may be decoded where neither --memory nor --scratch holds the samples "
        "that share them.",
        "count",
        4,
    ),
    CommandOption("--workers", "Threads that make samples. [default: usable CPUs]", "int"),
    CommandOption(
        "--part",
        "Make part K of N of the shards, 1/8 to 8/8 in as many jobs; the last to end finishes.",
        metavar="K/N",
    ),
    CommandOption(
        "--scheduler", "Convert on the workers of this dask scheduler.", metavar="ADDRESS"
    ),
    JSON,
)

RUN: Final = (
    CommandOption("--out", "The run directory. [default: iobench-runs/SCRIPT-N or NAME-N]", "path"),
    CommandOption("--name", "Name of the run, for reports, trackers and its directory."),
    CommandOption(
        "--batches-per-step", "Batches per optimiser step. [default: as observed]", "count"
    ),
    CommandOption(
        "--detail",
        "Spans per sample, per batch, or auto: as detailed as costs under 1 %.",
        default="auto",
    ),
    DIGESTS,
    DARSHAN,
    CommandOption(
        "--json",
        "Also write the result as JSON; -: to stdout, after the script's output.",
        "path",
        metavar="FILE",
    ),
    CommandOption("--report/--no-report", "Print the report to stderr at the end.", "flag", True),
    CommandOption(
        "--free-data",
        "Hand on the first batches again and again, to measure the step without loading.",
        "flag",
    ),
    CommandOption(
        "--live",
        "Print a line on stderr after 30 s of training, then every so many seconds; 0: none. "
        "[default: 60 on a terminal, else 0]",
        "int",
        metavar="SECONDS",
    ),
    CommandOption(
        "--live-file", "Append the same as a JSON object a line.", "path", metavar="FILE"
    ),
    CommandOption(
        "--keep-command", "Keep the values of options, too, not their names alone.", "flag"
    ),
)

REPORT: Final = (
    FULL,
    JSON,
    CommandOption("--json-schema", "Print the schema of --json, and exit.", "schema"),
    CommandOption(
        "--brief", "With --json: verdict, shares, stages and proposals with commands.", "flag"
    ),
    MARKDOWN,
    CommandOption(
        "--as",
        "Print it with this installed renderer.",
        metavar="NAME",
        field="renderer",
    ),
    HTML,
    CommandOption(
        "--darshan",
        "Darshan logs of the run, or folders of them; repeatable. Those made by --darshan auto are "
        "found without it.",
        "paths",
        metavar="LOG",
    ),
    CommandOption(
        "--trace", "Write it as a trace for Perfetto: .json or .json.gz.", "path", metavar="FILE"
    ),
    CommandOption(
        "--mlflow",
        "Log the run to an MLflow server: figures by epoch and the page; 'env' means "
        "MLFLOW_TRACKING_URI.",
        metavar="URI",
    ),
    CommandOption(
        "--wandb",
        "Log the run to Weights & Biases in the same way; WANDB_MODE=offline keeps it local.",
        metavar="PROJECT",
    ),
)

OPTIONS: Final = {
    "profile": PROFILE,
    "run": RUN,
    "report": REPORT,
    "advise": (
        CommandOption(
            "--try",
            "Run the best N changes, alternating with the baseline; free-data: the script of a run "
            "without loading, its command after --.",
            metavar="N|free-data",
            field="tried",
        ),
        CommandOption(
            "--rounds",
            "--try: rounds; fewer than 6 give no interval. [default: 6; of free-data 1]",
            "count",
        ),
        JSON,
    ),
    "simulate": (
        CommandOption(
            "--ranks",
            "Numbers of training processes; a range doubles at each step.",
            default="1..4096",
            metavar="N,N|N..N",
        ),
        CommandOption(
            "--storage-bandwidth",
            "Storage bandwidth for all ranks together, e.g. 100GB/s.",
            metavar="RATE",
        ),
        CommandOption(
            "--storage-iops",
            "Reads per second that storage serves in total, e.g. 1M.",
            metavar="RATE",
        ),
        CommandOption(
            "--bytes-per-sample",
            "Bytes read per sample. [default: as measured]",
            "size",
            metavar="SIZE",
        ),
        JSON,
    ),
    "convert": CONVERT,
    "verify": (
        CommandOption(
            "--against",
            "Make every sample again from this dataset or these files and compare; repeatable.",
            "texts",
            metavar="SOURCE",
            field="targets",
        ),
        DATA_DIR,
        CommandOption(
            "--option",
            "An option of the dataset, instead of the one the store was made with.",
            "pairs",
            field="options",
        ),
        JSON,
    ),
    "stage": (
        CommandOption(
            "--to",
            "Copy to below this folder, e.g. $TMPDIR; copies there are shared.",
            "path",
            metavar="DIR",
            required=True,
        ),
        JSON,
    ),
    "list": (JSON,),
    "info": (DATA_DIR, DATASET_OPTION, JSON),
    "synthesize": (
        CommandOption(
            "--scale", "Share of the real samples. [default: what a profile uses]", "float"
        ),
        CommandOption("--tiny", "The small sizes that tests use.", "flag"),
        CommandOption("--seed", "The same seed gives the same bytes.", "int", 0),
        DATASET_OPTION,
    ),
    "check": (
        CommandOption(
            "--counts",
            "Compare the run's counts with those in this file.",
            "path",
            metavar="FILE",
        ),
        CommandOption("--update", "Write the run's counts to --counts instead.", "flag"),
        CommandOption(
            "--max-exposed",
            "Largest share the run may wait in its epochs after the first, else in steady state: "
            "5%.",
            metavar="SHARE",
        ),
        CommandOption(
            "--against",
            "Compare exposed time per sample with that of a stored run.",
            "path",
            metavar="RUN",
        ),
        CommandOption("--any-machine", "Also compare with a run from another machine.", "flag"),
        CommandOption(
            "--margin",
            "--against: how much more exposed time per sample it may have. [default: 5%]",
            metavar="SHARE",
        ),
        MARKDOWN,
        JSON,
    ),
    "compare": (
        JSON,
        MARKDOWN,
        HTML,
        CommandOption(
            "--quarterly",
            "Print the table of MAELSTROM D2.3 instead (application, framework, format) from "
            "suites, with the published figures; the newest of each cell.",
            "flag",
        ),
    ),
    "suite": (
        CommandOption(
            "--out",
            "Folder for results and runs; a suite begun there is continued.",
            "path",
            metavar="DIR",
        ),
        CommandOption(
            "--set",
            "Change the recipe: repeats=3, format=source,zarr, tiny=true; repeatable.",
            "texts",
            metavar="KEY=VALUE",
            field="changes",
        ),
        CommandOption(
            "--dry-run", "Check the recipe and print its cells and the runs left.", "flag"
        ),
        CommandOption(
            "--allow-code",
            "Run what the recipe names as code: a command, MODULE:CALLABLE, a library.",
            "flag",
        ),
        JSON,
        MARKDOWN,
        HTML,
    ),
    "limits": (
        CommandOption("--request", "Size of each read.", default="1MiB", metavar="SIZE"),
        CommandOption(
            "--duration", "Longest time in total, in seconds.", "float", 20.0, field="duration_s"
        ),
        JSON,
    ),
    "doctor": (JSON,),
}
"""The options of each command, in the order of its help."""
OF_SOURCE: Final = {option.name: option for option in SOURCE}
"""Options of `iobench profile` that `iobench convert` has as well, by name."""
OF_PROFILE: Final = {option.name: option for option in PROFILE}
"""All of `iobench profile`, which advice and the recipes of suites know by name."""
NOT_OF_STORES: Final = (
    *("--format", "--pipeline", "--data-dir", "--option", "--sample-dim"),
    *("--variables", "--download", "--tiny"),
)
"""What says how samples are made: of no meaning where all there is are finished stores."""
OF_VALUES: Final = {
    "dtype": re.compile(r".+=[A-Za-z][A-Za-z0-9]*"),
    "range": re.compile(r".+=[^=]+:[^=]+"),
}
"""Options of `iobench convert` for how values are stored; what else may follow one, after a comma.
"""
SHARD_SIZE: Final = "shard-size"
_CODECS: Final = "bitround|blosc(?:-lz4)?|bz2|gzip|lz4|lzma|shuffle|zlib|zstd"
OF_PARTS: Final = {
    "inner-chunk": re.compile(r".+=\d+"),
    "codec": re.compile(
        rf"({_CODECS})(:.*)?|(level|cname|clevel|shuffle|blocksize|acceleration|preset)=.+"
    ),
}
"""Options of formats whose value has commas."""
OF_FORMATS: Final = ("codec", "encoding", "inner-chunk", "chunk-samples")
"""Options of our formats."""


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
        if ":" in item and OF_PARTS["codec"].fullmatch(piece) and _ends_with_codec(item):
            item += f",{piece}"
        elif equals < 0 or 0 <= colon < equals:
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


def _ends_with_codec(item: str) -> bool:
    options = parse_format(item)[1]
    return bool(options) and options[-1][0] == "codec"


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
        if key in OF_VALUES or key in ("codec", "chunk-samples", SHARD_SIZE):
            words += [f"--{key}", value]
        else:
            words += ["--format-option", f"{key}={value}"]
    return words
