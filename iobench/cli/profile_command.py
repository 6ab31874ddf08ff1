"""``iobench profile``: where a training loop waits for a dataset's samples, and why."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["profile"]


def profile(
    targets: Annotated[
        list[str],
        typer.Argument(metavar="NAME|FILE...", help="A dataset's name, or files of your own."),
    ],
    formats: Annotated[
        str,
        typer.Option(
            "--format", help="source, zarr, tfrecord, numpy; several with commas take turns."
        ),
    ] = "source",
    pipeline: Annotated[
        str,
        typer.Option(
            help="Who loads the original files: own; upstream: the application's own code; "
            "climetlab: the real plugin. Several with commas take turns."
        ),
    ] = "own",
    framework: Annotated[
        str, typer.Option(help="workers: our worker processes; torch: torch's DataLoader.")
    ] = "workers",
    workers: Annotated[
        int | None,
        typer.Option(help="Loading processes; 0 loads in the loop. [default: usable CPUs]"),
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Samples a batch. [default: the published one, else 1]")
    ] = None,
    batches: Annotated[
        int | None,
        typer.Option(help="Batches to run. [default: 200, or 60 s of steady state]"),
    ] = None,
    duration: Annotated[
        float | None,
        typer.Option(help="Seconds of steady state to run at most."),
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(help="Passes over the samples, instead of batches.")
    ] = None,
    compute: Annotated[
        str, typer.Option(help="Time of a training step: published, none, or e.g. 25ms.")
    ] = "published",
    cache: Annotated[
        str,
        typer.Option(help="Page cache: as-is, warm (read first) or cold (evicted every epoch)."),
    ] = "as-is",
    data_dir: Annotated[
        Path | None,
        typer.Option(help="The dataset's files: a CliMetLab mirror, or a flat folder."),
    ] = None,
    files: Annotated[
        str | None,
        typer.Option(
            metavar="GLOB",
            help="Your own layout of the dataset: paths with {year}, {month}, {day}; quoted.",
        ),
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option(help="An option of the dataset, NAME=VALUE; repeatable.")
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="Load one split's samples only, e.g. train.")
    ] = None,
    download: Annotated[
        bool,
        typer.Option(
            "--download", help="Fetch files that are not at hand, through the CliMetLab plugin."
        ),
    ] = False,
    download_timeout: Annotated[
        float, typer.Option(help="Seconds the download may take.")
    ] = 3600.0,
    window: Annotated[
        str | None,
        typer.Option(help="Samples of several items: offsets of inputs:targets, --window=-1,0:1."),
    ] = None,
    sample_dim: Annotated[
        str | None, typer.Option(help="Own files: the dimension along which samples lie.")
    ] = None,
    variables: Annotated[
        str | None, typer.Option(help="Own files: the variables to load, with commas.")
    ] = None,
    store_dir: Annotated[
        Path | None,
        typer.Option(help="Where stores and stand-ins go. [default: $IOBENCH_STORE_DIR, ...]"),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The run directory. [default: iobench-runs/NAME-N]")
    ] = None,
    spool: Annotated[
        Path | None, typer.Option(help="Node-local folder for spans until they are gathered.")
    ] = None,
    detail: Annotated[
        str, typer.Option(help="Spans per sample, per batch, or auto: what costs under 1 %.")
    ] = "auto",
    tiny: Annotated[
        bool, typer.Option("--tiny", help="Use the small stand-in that tests use.")
    ] = False,
    scale: Annotated[
        float | None, typer.Option(help="Use a stand-in with this share of the real samples.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the order of samples and the stand-in.")] = 0,
    json: Annotated[
        bool, typer.Option("--json", help="Print the result as JSON instead of a report.")
    ] = False,
) -> None:
    """Measure every stage of loading, in the workers, and which of it the training waits for."""
    from iobench.cli.report_command import print_report
    from iobench.cli.screen import TerminalScreen
    from iobench.profiling import RunConfig
    from iobench.profiling import profile as run_profile

    config = RunConfig(
        targets=tuple(targets),
        formats=_names(formats),
        pipelines=_names(pipeline),
        framework=framework,
        workers=workers,
        batch_size=batch_size,
        batches=batches,
        duration_s=duration,
        epochs=epochs,
        compute=compute,
        cache=cache,
        data_dir=data_dir,
        files=files,
        store_dir=store_dir,
        out=out,
        spool=spool,
        options=_options(option or []),
        split=split,
        window=window,
        download=download,
        download_timeout_s=download_timeout,
        sample_dim=sample_dim,
        variables=_names(variables or ""),
        tiny=tiny,
        scale=scale,
        seed=seed,
        detail=detail,
        command=("iobench", *sys.argv[1:]),
    )
    screen = TerminalScreen()
    run = run_profile(config, screen)
    print_report(run, json=json)
    screen.note(f"kept in {run}; the same report again: iobench report {run}")


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _options(pairs: list[str], *, spelled: str = "--option") -> dict[str, str]:
    """Return ``NAME=VALUE`` pairs as a mapping; ``spelled`` is the option, for the message.

    Raises
    ------
    OptionError
        If one has no ``=``.
    """
    from iobench.errors import OptionError

    options = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise OptionError(f"{spelled} {pair}: expected NAME=VALUE")
        options[name] = value
    return options
