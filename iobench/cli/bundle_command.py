"""``iobench bundle``: a run to be passed on, without the names in it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from iobench.cli.documents import Json, print_answer

if TYPE_CHECKING:
    from iobench.bundling.bundle import Replacement


def bundle(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="A .tar.gz to write.")
    ] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Do not replace this name; may be repeated."),
    ] = None,
    show: Annotated[
        bool,
        typer.Option("--show", help=("Print what would be replaced and by what; write nothing.")),
    ] = False,
    json: Json = False,
) -> None:
    """Pack a run for a help desk, with its report; paths, users and hosts are replaced."""
    import os

    from iobench.bundling.bundle import make_bundle
    from iobench.cli.installation import installed_versions
    from iobench.cli.screen import TerminalScreen
    from iobench.errors import IobenchError, OptionError, StorageError
    from iobench.report.document import properties, sentences
    from iobench.report.units import count, nbytes
    from iobench.report.written import write_whole

    if show == (out is not None):
        raise OptionError("iobench bundle: expected either -o FILE or --show")
    if out is not None and not out.name.endswith((".tar.gz", ".tgz")):
        raise OptionError(f"{out}: expected a name that ends with .tar.gz")
    screen = TerminalScreen()
    versions = {} if show else installed_versions()
    try:
        made = make_bundle(
            run,
            versions=versions,
            environment=os.environ,
            keep=keep or (),
        )
    except IobenchError:
        raise
    except OSError as error:  # a copy without names is made first, for its report
        raise StorageError(
            f"{error.filename or 'temporary files'}: cannot be written "
            f"({error.strerror or error}); set TMPDIR to a folder with room"
        ) from error
    if out is None:
        print_answer(
            f"{len(made.replacements)} names would be replaced",
            properties(map(_row, made.replacements)),
            *sentences(made.notes),
            figures={"replacements": made.replacements, "notes": made.notes},
            json=json,
        )
        return
    data = made.packed()
    write_whole(out, data)
    n_names = count(len(made.replacements))
    print_answer(
        f"{out}: {nbytes(len(data))}, {count(len(made.files))} files, {n_names} names replaced; "
        "check them with --show before you share it",
        figures={
            "bundle": str(out),
            "nbytes": len(data),
            "files": list(made.files),
            "replaced": made.manifest["replaced"],
            "notes": made.manifest["notes"],
        },
        json=json,
    )
    for note in made.notes:
        screen.note(note)


def _row(each: Replacement) -> tuple[str, str]:
    where = "" if each.everywhere else "  (only in paths, because reports use this word)"
    return each.pseudonym, f"{each.kind}: {ascii(each.name)[1:-1]}{where}"
