"""``iobench convert``: write a dataset's samples into a container that loads faster."""

from __future__ import annotations

from typing import Annotated

import typer

from iobench.cli.documents import Json, print_answer
from iobench.cli.source_options import (
    AllowGaps,
    DataDir,
    DatasetOptions,
    Download,
    DownloadTimeout,
    FilesGlob,
    Memory,
    OneSplit,
    SampleDim,
    SplitsBy,
    StandInScale,
    StandInSeed,
    StandInTiny,
    StoreDir,
    VariableNames,
    split_names,
    split_options,
)


def convert(
    sources: Annotated[
        list[str],
        typer.Argument(metavar="SOURCE...", help="A dataset's name, or files of your own."),
    ],
    out: Annotated[
        str,
        typer.Argument(
            metavar="OUT",
            help=("Its folder or s3://bucket/prefix: new, or begun by the same command."),
        ),
    ],
    to: Annotated[
        str, typer.Option(metavar="FORMAT", help=("Store format: zarr, tfrecord or numpy."))
    ],
    stage: Annotated[
        str,
        typer.Option(
            help=("What is stored: decoded (the arrays of the source) or preprocessed (samples).")
        ),
    ] = "preprocessed",
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Print the plan, from a short probe, and write nothing."),
    ] = False,
    sample_dim: SampleDim = None,
    variables: VariableNames = None,
    target_variables: Annotated[
        str | None,
        typer.Option(help="Own files: the target variables of training, separated by commas."),
    ] = None,
    split: OneSplit = None,
    split_by: SplitsBy = None,
    allow_gaps: AllowGaps = False,
    window: Annotated[
        str | None,
        typer.Option(
            help=("Not allowed here: a store holds each item once; give --window when loading.")
        ),
    ] = None,
    dtype: Annotated[
        list[str] | None,
        typer.Option(help="Lossy: float16 or int16; VAR=DTYPE for one variable; repeatable."),
    ] = None,
    range_: Annotated[
        list[str] | None,
        typer.Option(
            "--range",
            help=(
                "Range that int16 covers, VAR=LOW:HIGH; repeatable. [default: that of the data, "
                "found by reading all samples first]"
            ),
        ),
    ] = None,
    encoding: Annotated[
        str | None, typer.Option(help="tfrecord: float, lists of numbers, or bytes.")
    ] = None,
    codec: Annotated[
        str | None, typer.Option(help="zarr: none or blosc-lz4. [default: none]")
    ] = None,
    inner_chunk: Annotated[
        str | None,
        typer.Option(
            help=("zarr: chunks within a sample, e.g. y=256,x=256. [default: a whole sample]")
        ),
    ] = None,
    format_option: Annotated[
        list[str] | None,
        typer.Option(help="An option of a third-party format, NAME=VALUE; repeatable."),
    ] = None,
    shard_size: Annotated[str, typer.Option(help="Bytes of samples per shard.")] = "1GiB",
    memory: Memory = None,
    workers: Annotated[
        int | None, typer.Option(help="Threads that make samples. [default: usable CPUs]")
    ] = None,
    scheduler: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Convert on the workers of this dask scheduler."),
    ] = None,
    hash_sources: Annotated[
        bool,
        typer.Option(
            "--hash-sources",
            help=("Identify source files by all of their bytes, not by parts of them."),
        ),
    ] = False,
    compute: Annotated[
        str,
        typer.Option(help=("--dry-run: time of the training step: published, none, or e.g. 25ms.")),
    ] = "published",
    batch_size: Annotated[
        int | None,
        typer.Option(help="--dry-run: samples per step. [default: as published, else 1]"),
    ] = None,
    data_dir: DataDir = None,
    files: FilesGlob = None,
    option: DatasetOptions = None,
    download: Download = False,
    download_timeout: DownloadTimeout = 3600.0,
    store_dir: StoreDir = None,
    tiny: StandInTiny = False,
    scale: StandInScale = None,
    seed: StandInSeed = 0,
    json: Json = False,
) -> None:
    """Write samples into a standard container, verified and resumable, or say what it takes."""
    from iobench.cli.conversion_text import forecast_told, outcome_told, profile_command
    from iobench.cli.screen import TerminalScreen
    from iobench.conversion.conversion_run import forecast, run
    from iobench.conversion.convert_request import ConvertRequest
    from iobench.files.urls import as_path
    from iobench.sizes import parse_nbytes

    named = {"encoding": encoding, "codec": codec, "inner-chunk": inner_chunk}
    request = ConvertRequest(
        targets=tuple(sources),
        out=as_path(out),
        to=to,
        stage=stage,
        split=split,
        split_by=tuple(split_by or ()),
        allow_gaps=allow_gaps,
        window=window,
        sample_dim=sample_dim,
        variables=split_names(variables or ""),
        target_variables=split_names(target_variables or ""),
        dtype=tuple(dtype or ()),
        ranges=tuple(range_ or ()),
        format_options={
            **{name: value for name, value in named.items() if value is not None},
            **split_options(format_option or [], spelled="--format-option"),
        },
        shard_nbytes=parse_nbytes("--shard-size", shard_size),
        memory_nbytes=None if memory is None else parse_nbytes("--memory", memory),
        workers=workers,
        scheduler=scheduler,
        hash_sources=hash_sources,
        compute=compute,
        batch_size=batch_size,
        data_dir=None if data_dir is None else as_path(data_dir),
        files=files,
        options=split_options(option or []),
        download=download,
        download_timeout_s=download_timeout,
        store_dir=store_dir,
        tiny=tiny,
        scale=scale,
        seed=seed,
    )
    screen = TerminalScreen()
    if dry_run:
        prepared, planned = forecast(request, screen)
        title, told = forecast_told(request, prepared, planned)
        facts = {"kind": "plan", "out": str(request.out), **planned.to_dict()}
    else:
        outcome = run(request, screen)
        title, told = outcome_told(outcome)
        command = profile_command(str(outcome.path))
        facts = {"kind": "conversion", **outcome.to_dict(), "next_command": command}
    print_answer(title, *told, figures=facts, json=json)
