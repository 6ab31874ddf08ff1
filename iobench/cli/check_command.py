"""``iobench check``: a gate for CI, by counts or by exposed time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from iobench.cli.command import IobenchCommand
from iobench.cli.documents import Json, print_answer, print_document

if TYPE_CHECKING:
    from iobench.subjects.check.gates import Checked, Gate

STDOUT: Final = "-"


class CheckCommand(IobenchCommand):
    """Takes ``--markdown`` with or without a file."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments, a ``--markdown`` without a file as one of stdout."""
        return super().parse_args(ctx, with_stdout(args))


def with_stdout(own: Sequence[str]) -> list[str]:
    """Give a ``--markdown`` without a file the name of stdout."""
    found = []
    for place, word in enumerate(own):
        found.append(word)
        if word == "--markdown":
            following = own[place + 1] if place + 1 < len(own) else "--"
            if following.startswith("-") and following != STDOUT:
                found.append(STDOUT)
    return found


def check(
    context: typer.Context,
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")],
    counts: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Compare the run's counts with those in this file."),
    ] = None,
    update: Annotated[
        bool, typer.Option("--update", help="Write the run's counts to --counts instead.")
    ] = False,
    max_exposed: Annotated[
        str | None,
        typer.Option(
            metavar="SHARE",
            help=(
                "Largest share the run may wait in its epochs after the first, else in steady "
                "state: 5%."
            ),
        ),
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN", help=("Compare exposed time per sample with that of a stored run.")
        ),
    ] = None,
    any_machine: Annotated[
        bool, typer.Option("--any-machine", help="Also compare with a run from another machine.")
    ] = False,
    margin: Annotated[
        str,
        typer.Option(
            metavar="SHARE", help="--against: how much more exposed time per sample it may have."
        ),
    ] = "5%",
    markdown: Annotated[
        str | None,
        typer.Option(
            metavar="[FILE]", help="Add a summary to a file, such as $GITHUB_STEP_SUMMARY."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Pass or fail a change, for CI: exit 0 passed, 3 regression, 4 cannot be told, 1 error.

    By counts that no machine changes (RUN --counts: more work fails, less passes), or by exposed
    time (RUN --max-exposed, RUN --against STORED).
    """
    from iobench.errors import OptionError
    from iobench.subjects.check.gates import Checked

    _refuse_idle(context, update=update)
    if json and markdown == STDOUT:
        raise OptionError("--json and --markdown: both go to stdout; give --markdown a file")
    if update:
        if counts is None or max_exposed or against:
            raise OptionError(
                "--update: writes a run's counts; expected RUN --counts FILE --update"
            )
        _keep(run, counts, json=json)
        return
    gates = _of_run(run, counts, max_exposed, against, margin, any_machine=any_machine)
    _tell(Checked(tuple(gates)), markdown, json=json)


def _refuse_idle(context: typer.Context, *, update: bool) -> None:
    """Refuse an option that would change nothing: whoever gives it expects otherwise."""
    from iobench.errors import OptionError

    given = {
        name
        for name in context.params
        if getattr(context.get_parameter_source(name), "name", "") == "COMMANDLINE"
    }
    for name, needed, is_there in (
        ("margin", "--against RUN", "against" in given),
        ("any_machine", "--against RUN", "against" in given),
        ("markdown", "something to compare, and not --update", not update),
    ):
        if name in given and not is_there:
            option = name.replace("_", "-")
            raise OptionError(f"--{option}: has no effect here; it needs {needed}")


def _of_run(
    run: Path,
    counts: Path | None,
    max_exposed: str | None,
    against: Path | None,
    margin: str,
    *,
    any_machine: bool,
) -> list[Gate]:
    from iobench.errors import OptionError
    from iobench.subjects.check.gated_runs import gate_counts, gate_growth, gate_shares

    gates: list[Gate] = []
    if counts is not None:
        gates += gate_counts(run, counts)
    if max_exposed is not None:
        gates += gate_shares(run, _share("--max-exposed", max_exposed))
    if against is not None:
        gates += gate_growth(run, against, _share("--margin", margin), any_machine=any_machine)
    if not gates:
        raise OptionError(
            f"{run}: nothing to compare it with; expected --counts FILE, --max-exposed 5% or "
            "--against RUN"
        )
    return gates


def _keep(run: Path, counts: Path, *, json: bool) -> None:
    from iobench.report.document import sentences
    from iobench.subjects.check.gated_runs import keep_counts
    from iobench.subjects.check.section import kept_lines

    kept = keep_counts(run, counts)
    figures = {name: {"exact": each.exact, "at_most": each.at_most} for name, each in kept.items()}
    print_answer(
        f"Written to {counts}; commit it",
        *sentences(kept_lines(kept)),
        figures={"file": str(counts), "runs": figures},
        json=json,
    )


def _tell(found: Checked, markdown: str | None, *, json: bool) -> None:
    """Print what was found; leave with what follows from it."""
    from iobench.registry import find_renderer
    from iobench.subjects.check.section import check_document

    document = check_document(found)
    to_stdout = markdown == STDOUT
    print_document(document, "json" if json else "markdown" if to_stdout else "")
    if markdown is not None and not to_stdout:
        _add_summary(Path(markdown), find_renderer("markdown").render(document))
    raise typer.Exit(int(found.judged))


def _add_summary(path: Path, text: str) -> None:
    """Add to a file: other steps of the job may have written theirs."""
    from iobench.errors import StorageError

    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise StorageError(
            f"{path}: cannot be written ({error.strerror or error}); name another file"
        ) from error


def _share(option: str, text: str) -> float:
    """Return the share that ``5%`` or ``0.05`` names."""
    from iobench.errors import OptionError

    number, percent = text.strip().removesuffix("%"), text.strip().endswith("%")
    try:
        value = float(number) / (100 if percent else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise OptionError(f"{option} {text}: expected a share such as 5% or 0.05")
    return value
