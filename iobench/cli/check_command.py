"""``iobench check``: a gate for CI, by counts, by commands in turns, or by exposed time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from iobench.cli.command import IobenchCommand
from iobench.cli.documents import Json, print_answer, print_document

if TYPE_CHECKING:
    from collections.abc import Callable

    from iobench.recording.clocks import Clock
    from iobench.subjects.check.gates import Checked, Gate, PairedGate

SAID_EVERY_NS: Final = 30_000_000_000
COMMANDS: Final = "iobench.check.commands"
STDOUT: Final = "-"


class CheckCommand(IobenchCommand):
    """Takes the commands behind ``--`` as they are, and ``--markdown`` with or without a file."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse what comes before the first ``--``; the rest is in ``ctx.meta``."""
        own, ctx.meta[COMMANDS] = split_commands(args)
        return super().parse_args(ctx, with_stdout(own))


def split_commands(args: Sequence[str]) -> tuple[list[str], tuple[list[str], ...]]:
    """Return the words before the first ``--``, and the one or two commands after it.

    The first ``--against`` that a ``--`` follows ends the first command. The second is all the
    rest, whatever is in it.
    """
    words = list(args)
    if "--" not in words:
        return words, ()
    first = words.index("--")
    own, rest = words[:first], words[first + 1 :]
    for place in range(len(rest) - 1):
        if rest[place : place + 2] == ["--against", "--"]:
            return own, (rest[:place], rest[place + 2 :])
    return own, (rest,)


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
    run: Annotated[
        Path | None,
        typer.Argument(
            metavar="[RUN] [-- COMMAND... --against -- COMMAND...]",
            help="A run directory, or, after --, a command and the one to compare it with.",
            show_default=False,
        ),
    ] = None,
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
        typer.Option(metavar="SHARE", help=("How much slower than the run or command it may be.")),
    ] = "5%",
    rounds: Annotated[
        int,
        typer.Option(help="Rounds of the two commands, 6 or more, after a warm-up round."),
    ] = 12,
    cpu: Annotated[
        bool,
        typer.Option(
            "--cpu", help=("Compare the CPU time of the two commands instead of elapsed time.")
        ),
    ] = False,
    markdown: Annotated[
        str | None,
        typer.Option(
            metavar="[FILE]", help="Add a summary to a file, such as $GITHUB_STEP_SUMMARY."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Pass or fail a change, for CI: exit 0 passed, 3 regression, 4 cannot be told, 1 error.

    By counts that no machine changes (RUN --counts: more work fails, less passes), by two commands
    in turns (-- A --against -- B: the first may not be slower), or by exposed time (RUN
    --max-exposed, RUN --against STORED).
    A ends at the first --against that a -- follows; B is all the rest.
    """
    from iobench.errors import OptionError
    from iobench.subjects.check.gates import Checked

    commands = context.meta.get(COMMANDS, ())
    _refuse_idle(context, commands, update=update)
    if json and markdown == STDOUT:
        raise OptionError("--json and --markdown: both go to stdout; give --markdown a file")
    if update:
        if counts is None or run is None or commands or max_exposed or against:
            raise OptionError(
                "--update: writes a run's counts; expected RUN --counts FILE --update"
            )
        _keep(run, counts, json=json)
        return
    gates: list[Gate] = []
    if commands:
        if run is not None or counts or max_exposed or against:
            raise OptionError("--: runs two commands; leave out RUN and what it is compared with")
        gates.append(_paired(commands, rounds, _share("--margin", margin), by_cpu=cpu))
    elif run is None:
        raise OptionError("expected RUN, or -- COMMAND... --against -- COMMAND...")
    else:
        gates += _of_run(run, counts, max_exposed, against, margin, any_machine=any_machine)
    _tell(Checked(tuple(gates)), markdown, json=json)


def _refuse_idle(context: typer.Context, commands: Sequence[Any], *, update: bool) -> None:
    """Refuse an option that would change nothing: whoever gives it expects otherwise."""
    from iobench.errors import OptionError

    given = {
        name
        for name in context.params
        if getattr(context.get_parameter_source(name), "name", "") == "COMMANDLINE"
    }
    against = bool({"against"} & given)
    for names, needed, is_there in (
        (("rounds", "cpu"), "-- COMMAND... --against -- COMMAND...", bool(commands)),
        (("margin",), "a RUN or COMMAND to be --against", against or bool(commands)),
        (("any_machine",), "--against RUN", against),
        (("markdown",), "something to compare, and not --update", not update),
    ):
        for name in names:
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


def _paired(
    commands: tuple[list[str], ...], rounds: int, margin: float, *, by_cpu: bool
) -> PairedGate:
    from iobench.cli.interrupts import Interrupted
    from iobench.cli.screen import TerminalScreen
    from iobench.errors import OptionError
    from iobench.trials.paired_commands import compare_commands

    if len(commands) != 2 or not all(commands):
        raise OptionError("expected two commands: -- COMMAND... --against -- COMMAND...")
    screen = TerminalScreen()
    try:
        with screen.progress("commands run") as move:
            told = TrialProgress(rounds, screen.note, move)
            return compare_commands(
                *commands, rounds=rounds, margin=margin, by_cpu=by_cpu, ran=told.ran
            )
    except Interrupted as interrupt:
        interrupt.add_note(f"only {told.n_rounds} of {rounds} rounds were run, too few to decide")
        raise


class TrialProgress:
    """Says before two commands take turns how often they run, then how long it takes, and how far.

    Parameters
    ----------
    rounds : int
        That count, after a first one that does not.
    say : callable
        Takes one line.
    move : callable
        Moves the bar of a terminal: (done, total).
    """

    def __init__(
        self,
        rounds: int,
        say: Callable[[str], None],
        move: Callable[[int, int], None],
        clock: Clock | None = None,
    ) -> None:
        from iobench.recording.clocks import SYSTEM_CLOCK

        self.n_rounds = 0
        self._rounds, self._say, self._move = rounds, say, move
        self._clock = clock or SYSTEM_CLOCK
        self._start_ns = self._told_ns = self._clock.now_ns()
        say(
            f"{rounds} rounds of three runs (the command, the other, the other again), after a "
            "warm-up round; the time needed is estimated after that round"
        )

    def ran(self, done: int, most: int) -> None:
        """Take note of another run of a command: so many of so many are done."""
        from iobench.report.units import duration

        self._move(done, most)
        now_ns = self._clock.now_ns()
        per_round = most // (self._rounds + 1)
        self.n_rounds = max(0, done // per_round - 1)
        left_ns = (now_ns - self._start_ns) * (most - done) // done
        if done == per_round:
            self._told_ns = now_ns
            self._say(
                f"a round took {duration(now_ns - self._start_ns)}: the {self._rounds} counted "
                f"rounds take about {duration(left_ns)}, or less if the result is clear earlier"
            )
        elif now_ns - self._told_ns >= SAID_EVERY_NS and done < most:
            self._told_ns = now_ns
            self._say(f"{self.n_rounds} of {self._rounds} rounds, about {duration(left_ns)} left")


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
