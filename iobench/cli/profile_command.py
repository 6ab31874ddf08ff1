"""``iobench profile``: where a training loop waits for a dataset's samples, and why."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from iobench.cli.command import IobenchCommand, declared, make_typer
from iobench.cli.source_options import (
    AllowGaps,
    DataDir,
    DatasetOptions,
    Download,
    DownloadTimeout,
    FilesGlob,
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
from iobench.cli.tracer_options import AUTO, Darshan, Energy, Monitor, darshan_words
from iobench.command_options import split_formats
from iobench.errors import OptionError

if TYPE_CHECKING:
    from iobench.profiling.config import RunConfig


def profile(
    context: typer.Context,
    targets: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME|FILE|STORE...",
            help=(
                "A dataset's name or your own files; also finished stores, alone or with their "
                "source."
            ),
        ),
    ],
    formats: Annotated[list[str] | None, declared("--format")] = None,
    pipeline: Annotated[str, declared("--pipeline")] = "auto",
    framework: Annotated[str, declared("--framework")] = "native",
    workers: Annotated[int | None, declared("--workers")] = None,
    prefetch: Annotated[int | None, declared("--prefetch")] = None,
    batch_size: Annotated[int | None, declared("--batch-size")] = None,
    batches: Annotated[int | None, declared("--batches")] = None,
    duration: Annotated[float | None, declared("--duration")] = None,
    epochs: Annotated[int | None, declared("--epochs")] = None,
    evaluate: Annotated[str | None, declared("--evaluate")] = None,
    compute: Annotated[str, declared("--compute")] = "published",
    batches_per_step: Annotated[int | None, declared("--batches-per-step")] = None,
    device: Annotated[str, declared("--device")] = "auto",
    cache: Annotated[str, declared("--cache")] = "as-is",
    data_dir: DataDir = None,
    files: FilesGlob = None,
    option: DatasetOptions = None,
    split: OneSplit = None,
    split_by: SplitsBy = None,
    allow_gaps: AllowGaps = False,
    download: Download = False,
    download_timeout: DownloadTimeout = 3600.0,
    window: Annotated[str | None, declared("--window")] = None,
    sample_dim: SampleDim = None,
    variables: VariableNames = None,
    store_dir: StoreDir = None,
    out: Annotated[Path | None, declared("--out")] = None,
    name: Annotated[str | None, declared("--name")] = None,
    spool: Annotated[Path | None, declared("--spool")] = None,
    detail: Annotated[str, declared("--detail")] = "auto",
    digests: Annotated[bool, declared("--digests")] = False,
    darshan: Darshan = None,
    energy: Energy = AUTO,
    monitor: Monitor = AUTO,
    limits: Annotated[str, declared("--limits")] = AUTO,
    tiny: StandInTiny = False,
    scale: StandInScale = None,
    seed: StandInSeed = 0,
    json: Annotated[bool, declared("--json")] = False,
    full: Annotated[bool, declared("--full")] = False,
) -> None:
    """Measure every stage of loading, in the workers, and which of it the training waits for."""
    from iobench.cli.report_command import print_report
    from iobench.cli.screen import TerminalScreen
    from iobench.files.urls import as_path
    from iobench.profiling.config import RunConfig
    from iobench.profiling.profile_run import profile as run_profile
    from iobench.registry import SOURCE
    from iobench.sources.named_stores import split_stores

    sources, stores = split_stores(targets)
    config = RunConfig(
        targets=sources,
        stores=stores,
        formats=split_formats(([SOURCE] if sources else []) if formats is None else formats),
        pipelines=split_names(pipeline),
        framework=framework,
        workers=workers,
        prefetch=prefetch,
        batch_size=batch_size,
        batches=batches,
        duration_s=duration,
        epochs=epochs,
        evaluate=evaluate,
        compute=compute,
        batches_per_step=batches_per_step,
        device=device,
        cache=cache,
        data_dir=None if data_dir is None else as_path(data_dir),
        files=files,
        store_dir=store_dir,
        out=out,
        name=name,
        spool=spool,
        options=split_options(option or []),
        split=split,
        split_by=tuple(split_by or ()),
        allow_gaps=allow_gaps,
        window=window,
        download=download,
        download_timeout_s=download_timeout,
        sample_dim=sample_dim,
        variables=split_names(variables or ""),
        tiny=tiny,
        scale=scale,
        seed=seed,
        detail=detail,
        digests=digests,
        darshan=darshan_words(darshan),
        energy=energy,
        monitor=monitor,
        limits=limits,
        command=("iobench", *sys.argv[1:]),
    )
    if context.obj is not None:  # another command only asks what these words mean
        context.obj(config)
        return
    screen = TerminalScreen()
    run = run_profile(config, screen)
    print_report(run, json=json, full=full)
    if json or full:
        screen.note(f"kept in {run}; show this report again with: iobench report {run}")
        screen.note(f"as a page with its timeline: iobench report {run} --html report.html")


def profile_config(words: Sequence[str]) -> RunConfig:
    """Return what ``iobench profile`` would be asked to do with these words behind it.

    Raises
    ------
    SystemExit
        If the words are no such call; why has been printed to stderr.
    OptionError
        If an option has a value that it cannot have.
    """
    taken: list[RunConfig] = []
    try:
        _parse(words, taken)
    except SystemExit:
        if not taken:
            raise
    return replace(taken[0], command=("iobench", "profile", *words))


def checked_config(words: Sequence[str]) -> RunConfig:
    """Return the same, of words that nobody typed: what is wrong with them is an error.

    Raises
    ------
    IobenchError
        If the words are no such call, or an option has a value that it cannot have.
    """
    taken: list[RunConfig] = []
    try:
        _parse(words, taken, standalone_mode=False)
    except Exception as error:
        # Of whichever click typer is built on: its own usage errors.
        if (told := getattr(error, "format_message", None)) is None:
            raise
        raise OptionError(" ".join(told().split())) from error
    return taken[0]


def _parse(words: Sequence[str], taken: list[RunConfig], **how: bool) -> None:
    app = make_typer()
    app.command(cls=IobenchCommand)(profile)
    app(args=list(words), prog_name="iobench profile", obj=taken.append, **how)
