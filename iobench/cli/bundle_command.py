"""``iobench bundle``: a run to be passed on, without the names in it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from iobench.bundling.bundle import Bundle

__all__ = ["bundle"]


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
        bool, typer.Option("--show", help="Print what would be replaced by what; write nothing.")
    ] = False,
    with_logs: Annotated[
        bool,
        typer.Option(
            "--with-logs", help="Add the logs of tracers as they are: they cannot be scrubbed."
        ),
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Pack a run for a help desk, with its report; paths, users and hosts are replaced."""
    import os

    from iobench.bundling.bundle import make_bundle
    from iobench.cli.installation import installed_versions
    from iobench.cli.screen import TerminalScreen
    from iobench.errors import IobenchError, OptionError, StorageError

    if show == (out is not None):
        raise OptionError("iobench bundle: expected either -o FILE or --show")
    if out is not None and not out.name.endswith((".tar.gz", ".tgz")):
        raise OptionError(f"{out}: expected a name that ends with .tar.gz")
    screen = TerminalScreen()
    with screen.progress("importing"):
        versions = {} if show else installed_versions()
    try:
        made = make_bundle(
            run,
            versions=versions,
            environment=os.environ,
            keep=keep or (),
            with_logs=with_logs,
        )
    except IobenchError:
        raise
    except OSError as error:  # a copy without names is made first, for its report
        raise StorageError(
            f"{error.filename or 'temporary files'}: cannot be written "
            f"({error.strerror or error}); set TMPDIR to a folder with room"
        ) from error
    if out is None:
        _show(made, json=json)
        return
    _write(made, out, json=json)
    for note in made.notes:
        screen.note(note)


def _show(made: Bundle, *, json: bool) -> None:
    if json:
        import json as json_text
        from dataclasses import asdict

        rows = [asdict(each) for each in made.replacements]
        typer.echo(json_text.dumps({"replacements": rows, "notes": made.notes}, indent=1))
        return
    from iobench.cli.screen import say

    width = max((len(each.pseudonym) for each in made.replacements), default=0)
    for each in made.replacements:
        where = "" if each.everywhere else "  (in paths only: also a word of reports)"
        typer.echo(f"{each.pseudonym:{width}}  {each.kind}: {ascii(each.name)[1:-1]}{where}")
    for note in made.notes:
        say(note)


def _write(made: Bundle, out: Path, *, json: bool) -> None:
    from iobench.report.units import count, nbytes
    from iobench.report.written import write_whole

    data = made.packed()
    write_whole(out, data)
    if json:
        import json as json_text

        answer = {
            "bundle": str(out),
            "nbytes": len(data),
            "files": list(made.files),
            "replaced": made.manifest["replaced"],
            "notes": made.manifest["notes"],
        }
        typer.echo(json_text.dumps(answer, indent=1))
        return
    from iobench.cli.screen import say

    n_names = count(len(made.replacements))
    say(
        f"{out}: {nbytes(len(data))}, {count(len(made.files))} files, {n_names} names replaced; "
        "look at them with --show before you pass it on"
    )
