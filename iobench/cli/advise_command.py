"""``iobench advise``: what would make a training wait less, by how much, and at what price."""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from iobench.analysis.advice.figures import Advice, AdvisedChange
    from iobench.analysis.intervals import RoundRatio
    from iobench.cli.screen import TerminalScreen
    from iobench.profiling.config import RunConfig
    from iobench.report.advice_input import AdviceInput

__all__ = ["advise"]

BATCHES: Final = "200"
DURATION_S: Final = "20"
"""What a profile made for advice runs at most of each format, where nobody says."""
OF_STORES: Final = frozenset({"tensorflow", "dali"})


def advise(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN|NAME...",
            help="A run directory; or what to profile first, with options of iobench profile.",
        ),
    ],
    try_: Annotated[
        int,
        typer.Option(
            "--try", metavar="N", help="Really run the best N, in turns with the baseline."
        ),
    ] = 0,
    rounds: Annotated[
        int, typer.Option(help="--try: turns of each; under 6 have no interval.")
    ] = 6,
    ranks: Annotated[
        int | None,
        typer.Option(help="The bill: training processes. [default: those of the run]"),
    ] = None,
    epochs: Annotated[int, typer.Option(help="The bill: passes over all samples.")] = 1,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Rank what would help by the gain predicted for it, with its cost and the command.

    Of a run directory it tells from what was recorded; of anything else it profiles the original
    files and one store of their samples first, in turns, unless --format says what.
    """
    from iobench.cli.screen import TerminalScreen
    from iobench.errors import OptionError
    from iobench.profiling.run import profile
    from iobench.report.advice_commands import words_of_profile

    for option, value, least in (
        ("--try", try_, 0),
        ("--rounds", rounds, 1),
        ("--ranks", 1 if ranks is None else ranks, 1),
        ("--epochs", epochs, 1),
    ):
        if value < least:
            raise OptionError(f"{option} {value}: expected {least} or more")
    screen = TerminalScreen()
    config = None
    run = _run_directory(words)
    if run is None:
        config = _profile_for_advice(words)
        run = profile(config, screen)
        screen.note(f"kept in {run}; the same advice again: iobench advise {run}")
    given, advice = _advice(run, ranks=ranks, epochs=epochs)
    if not json:
        _print_advice(advice, given)
    tried: list[tuple[AdvisedChange, RoundRatio]] = []
    if try_ and config is None:
        profiled = words_of_profile(given.facts.command)
        config = None if profiled is None else _config_of(profiled)
    why = ""
    if try_:
        tried, why = _try(advice, config, run, try_, rounds, screen)
    if json:
        _print_json(advice, given, tried, why)
    elif try_:
        _print_trial(tried, why)


def _run_directory(words: Sequence[str]) -> Path | None:
    """Return the run directory that is named, None where it is something to profile."""
    from iobench.errors import OptionError
    from iobench.profiles.folders import holds_runs

    path = Path(words[0])
    if not holds_runs(path):
        return None
    if len(words) > 1:
        raise OptionError(
            f"{' '.join(words[1:])}: says what to profile, and {path} is a run directory; "
            "leave it out"
        )
    return path


def _profile_for_advice(words: Sequence[str]) -> RunConfig:
    """Return the profile that advice is made from: short, and of one store beside the source."""
    given = {word.partition("=")[0] for word in words}
    more: list[str] = []
    if "--format" not in given and ":" not in words[0]:
        more += ["--format", _formats(words)]
    if "--pipeline" not in given:
        more += ["--pipeline", "own"]  # advice is for our loader, and for scripts that ran
    if not given & {"--batches", "--duration"}:
        more += ["--batches", BATCHES, "--duration", DURATION_S]
    return _config_of([*words, *more])


def _formats(words: Sequence[str]) -> str:
    """Return the source and the store that suits the framework; some frameworks know no source."""
    pairs = zip(words, [*words[1:], ""], strict=True)
    named = [after for word, after in pairs if word == "--framework"]
    named += [word.partition("=")[2] for word in words if word.startswith("--framework=")]
    frameworks = {name.strip() for text in named for name in text.split(",")}
    if frameworks & OF_STORES:
        return "tfrecord"
    return "source,numpy" if "torch" in frameworks else "source,tfrecord"


def _config_of(words: Sequence[str]) -> RunConfig:
    from iobench.cli.profile_command import profile_config

    return profile_config(words)


def _advice(run: Path, *, ranks: int | None, epochs: int) -> tuple[AdviceInput, Advice]:
    from iobench.analysis.run import open_runs
    from iobench.errors import ProfileError
    from iobench.report.advice_input import advice_input, advice_of, measured_ways

    given = advice_input(str(run), measured_ways(open_runs(run)))
    if given is None:
        raise ProfileError(
            f"{run}: no loader in it delivered a batch, expected a training loop that was fed; "
            "iobench report shows what its processes did"
        )
    return given, advice_of(given, ranks=ranks, epochs=epochs)


def _try(
    advice: Advice,
    config: RunConfig | None,
    run: Path,
    number: int,
    rounds: int,
    screen: TerminalScreen,
) -> tuple[list[tuple[AdvisedChange, RoundRatio]], str]:
    """Return what came of the best changes, or why none could be tried."""
    from iobench.trials.configurations import baseline_config, changed_config, try_changes

    if config is None:
        return [], (
            "Nothing tried: the loader is the script's own, so the change has to be made there; "
            "iobench check -- COMMAND --against -- CHANGED COMMAND then compares both in turns."
        )
    base = baseline_config(config, advice.baseline)
    possible = [
        change
        for change in (*advice.changes, *advice.to_measure)
        if changed_config(base, change.candidate) is not None
    ]
    if not possible:
        return [], "Nothing tried: nothing is proposed that iobench profile could run."
    with _trial_folder() as folder:
        tried = try_changes(base, possible[:number], folder, screen, rounds=rounds)
    return [(each.change, each.ratio) for each in tried], ""


@contextmanager
def _trial_folder() -> Iterator[Path]:
    """Yield a folder for the runs of a trial: spans of three seconds each, which nobody keeps."""
    with tempfile.TemporaryDirectory(prefix="iobench-trial-") as folder:
        yield Path(folder)


def _print_advice(advice: Advice, given: AdviceInput) -> None:
    from iobench.cli.screen import line_width, print_lines
    from iobench.report.advice_text import WIDTH, advice_lines

    print_lines(advice_lines(advice, given, width=line_width(WIDTH)))


def _print_trial(tried: Sequence[tuple[AdvisedChange, RoundRatio]], why: str) -> None:
    from iobench.cli.screen import line_width, print_lines
    from iobench.report.advice_text import WIDTH, trial_lines

    typer.echo()
    print_lines(trial_lines(tried, width=line_width(WIDTH)) or [why])


def _print_json(
    advice: Advice,
    given: AdviceInput,
    tried: Sequence[tuple[AdvisedChange, RoundRatio]],
    why: str,
) -> None:
    import json

    from iobench.report.advice_json import advice_to_json, trial_to_json

    document = advice_to_json(advice, given)
    document |= {"tried": trial_to_json(tried), "not_tried": why or None}
    typer.echo(json.dumps(document, indent=1, allow_nan=False))
