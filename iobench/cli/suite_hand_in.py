"""``iobench suite pack``, ``verify``, ``mllog``, ``dlio``, ``tell``: a suite for others."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from iobench.cli.documents import Json, print_answer

DOES_NOT_HOLD, CANNOT_BE_TOLD = 3, 4
Suite = Annotated[
    Path, typer.Argument(metavar="DIR", help=("The folder written by iobench suite --out."))
]


def pack(
    folder: Suite,
    archive: Annotated[Path, typer.Argument(metavar="ARCHIVE", help="A .tar.gz to write.")],
    keep: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Do not replace this name; may be repeated."),
    ] = None,
    without_spans: Annotated[
        bool,
        typer.Option(
            "--without-spans",
            help=("Leave the spans out: smaller, but figures cannot be computed again."),
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Pack a suite to be handed in: recipe, figures, runs, versions; names are replaced."""
    import os

    from iobench.cli.installation import installed_versions
    from iobench.errors import OptionError
    from iobench.report.document import sentences
    from iobench.report.units import count, nbytes
    from iobench.suites.suite_archive import pack as packed

    if not archive.name.endswith((".tar.gz", ".tgz")):
        raise OptionError(f"{archive}: expected a name that ends with .tar.gz")
    found = packed(
        folder,
        archive,
        versions=installed_versions(),
        environment=os.environ,
        keep=keep or (),
        spans=not without_spans,
    )
    print_answer(
        f"{archive}: {nbytes(found.nbytes)}, {count(found.n_files)} files, {count(found.n_names)} "
        f"names replaced, SHA-256 {found.sha256}",
        *sentences(found.notes, "caution"),
        figures={"archive": str(archive), **_plain(found)},
        json=json,
    )


def verify(
    archive: Annotated[
        Path, typer.Argument(metavar="ARCHIVE", help=("The archive written by suite pack."))
    ],
    json: Json = False,
) -> None:
    """Check an archive: each digest, all figures made again, cells, rounds, equal samples.

    Nothing in it is run. Exits with 0 if it holds, with 3 if it does not, with 4 if that cannot be
    told since runs are without spans, and with 1 if it cannot be read.
    """
    from iobench.report.document import sentences
    from iobench.report.units import count
    from iobench.suites.suite_archive import verify as checked

    found = checked(archive)
    holds = False if found.wrong else None if found.n_unproven else True
    said = {True: "holds", False: "does not hold", None: "cannot be checked"}[holds]
    print_answer(
        f"{archive}: {said}; {found.title}: {count(found.n_results)} results, "
        f"{count(found.n_figures)} figures computed again from their runs, SHA-256 {found.sha256}",
        *sentences(found.wrong, "bad"),
        *sentences(found.notes, "caution"),
        figures={"archive": str(archive), "holds": holds, **_plain(found)},
        json=json,
    )
    if found.wrong:
        raise typer.Exit(DOES_NOT_HOLD)
    if holds is None:
        raise typer.Exit(CANNOT_BE_TOLD)


def mllog(
    folder: Suite,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder for the logs, one per run.")],
    tell: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help=(
                "A value that no run records: submission_org=NAME, opt_name=Adam, ...; repeatable."
            ),
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Write each run as lines of MLPerf's logging (:::MLLOG): what was measured, or is told."""
    from iobench.report.document import Sentence
    from iobench.report.units import count
    from iobench.suites.mllog import parse_told, write_mllog

    logs = write_mllog(folder, out, parse_told(tell or ()))
    unknown = logs[0].unknown
    told = [
        Sentence(
            f"MLPerf HPC requires these values, which are missing: {', '.join(unknown)}. Give them "
            "with --tell."
        )
    ] * bool(unknown)
    print_answer(
        f"{out}: {count(len(logs))} logs",
        *told,
        Sentence(
            "Each log ends as aborted: a suite does not train to a target quality, and MLPerf "
            "counts nothing else as success."
        ),
        figures={"logs": [each.name for each in logs], "unknown": unknown},
        json=json,
    )


def dlio(
    folder: Suite,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help=("Write each cell as a DLIO workload into this folder, for DLIO's --config-dir."),
        ),
    ] = None,
    read: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FOLDER", help="Import DLIO's results from this folder as a cell; repeatable."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Write cells as workloads of DLIO, which MLPerf Storage runs; read what it found."""
    from iobench.errors import OptionError
    from iobench.report.document import Column, Sentence, Share, Table
    from iobench.suites.dlio import read_dlio, write_workloads

    if out is None and not read:
        raise OptionError("iobench suite dlio: expected --out FOLDER, --read FOLDER, or both")
    columns = (Column("cell"), Column("utilisation"))
    if out is not None:
        made = write_workloads(folder, out)
        print_answer(
            f"{out}: {len(made)} workloads",
            Table("", columns, tuple((each.name, Share(each.utilisation)) for each in made)),
            Sentence(
                f"For each: dlio_benchmark --config-dir {out} workload=CELL "
                "++workload.workflow.generate_data=True"
            ),
            figures={"workloads": {each.name: each.utilisation for each in made}},
            json=json,
        )
    found = [read_dlio(each, folder) for each in read or ()]
    if found:
        names = [" ".join(each.cell.values()) for each in found]
        shares = [each.figures.get("utilisation") for each in found]
        print_answer(
            f"{folder}: {len(found)} results of DLIO imported",
            Table("", columns, tuple(zip(names, map(Share, shares), strict=True))),
            figures={"results": [dict(each.figures) for each in found]},
            json=json,
        )


def tell(
    folder: Suite,
    mlflow: Annotated[
        str | None,
        typer.Option(
            metavar="URI", help=("URI of an MLflow server; 'env' means MLFLOW_TRACKING_URI.")
        ),
    ] = None,
    wandb: Annotated[
        str | None, typer.Option(metavar="PROJECT", help="Project of Weights & Biases.")
    ] = None,
) -> None:
    """Tell an MLflow server or Weights & Biases of a suite: mean and spread of each cell."""
    from iobench.errors import OptionError
    from iobench.suites.suite_tracking import log_suite

    if mlflow is None and wandb is None:
        raise OptionError("iobench suite tell: expected --mlflow URI, --wandb PROJECT, or both")
    log_suite(
        folder,
        mlflow=mlflow,
        wandb=wandb,
        say=lambda line: typer.echo(f"iobench: {line}", err=True),
    )


def _plain(found: object) -> dict[str, object]:
    from iobench.report.json_walk import to_plain

    return dict(to_plain(found))
