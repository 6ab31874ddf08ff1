"""``iobench advise``: what would make a training wait less, by how much, and at what price."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from iobench.cli.documents import print_document

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iobench.cli.screen import TerminalScreen
    from iobench.findings.advice.loading import Loading
    from iobench.findings.advice.proposals import Advice, TriedChange
    from iobench.profiling.config import RunConfig
    from iobench.runs.run_facts import RunFacts

BATCHES: Final = "200"
DURATION_S: Final = "20"
"""What a profile made for advice runs at most of each format, where nobody says."""
OF_STORES: Final = frozenset({"tensorflow", "dali"})


def advise(
    *, words: Sequence[str], n_tried: int, rounds: int, epochs: int | None, json: bool
) -> None:
    """Rank what would help, and print it; run the best of it where that is said."""
    import json as json_text

    from msgspec.structs import replace

    from iobench.cli.app import WORDS
    from iobench.cli.screen import TerminalScreen
    from iobench.errors import OptionError
    from iobench.findings.advice.advising import advice_document, trial_section
    from iobench.findings.advice.loading import baseline_first
    from iobench.profiling.profile_run import profile
    from iobench.report.document import Document
    from iobench.report.json_walk import to_plain

    for option, value, least in (
        ("--try", n_tried, 0),
        ("--rounds", rounds, 1),
        ("--epochs", 1 if epochs is None else epochs, 1),
    ):
        if value < least:
            raise OptionError(f"{option} {value}: expected {least} or more")
    screen = TerminalScreen()
    config = None
    run = _run_directory(words)
    command: list[str] = click.get_current_context().meta[WORDS]
    if command and (run is None or not n_tried):
        raise OptionError(
            f"-- {command[0]}: a command is for iobench advise RUN --try N; leave it out"
        )
    if run is None:
        config = _profile_for_advice(words)
        run = profile(config, screen)
        screen.note(f"kept in {run}; show this advice again with: iobench advise {run}")
    measured = _measured(run)
    advice = _advice(run, measured, epochs)
    if not json:
        print_document(advice_document(advice))
    if n_tried:
        baseline = baseline_first(measured)[0]
        if config is None and not advice.is_script:
            config = _recorded_config(baseline.facts, command)
        tried, why = _try(advice, baseline, config, n_tried, rounds, screen)
        advice = replace(advice, tried=tuple(tried), not_tried=why)
        if not json:
            print_document(Document("", (trial_section(advice),)))
    if json:
        click.echo(json_text.dumps(to_plain(advice), indent=1, allow_nan=False))


def _run_directory(words: Sequence[str]) -> Path | None:
    """Return the run directory that is named, None where it is something to profile."""
    from iobench.errors import OptionError
    from iobench.runs.folders import holds_runs

    path = Path(words[0])
    if not holds_runs(path):
        return None
    if len(words) > 1:
        raise OptionError(
            f"{' '.join(words[1:])}: is for what to profile, but {path} is a run directory; leave "
            "it out"
        )
    return path


def _profile_for_advice(words: Sequence[str]) -> RunConfig:
    """Return the profile that advice is made from: short, and of one store beside the source."""
    import shlex

    from iobench.cli.profile_command import profile_config
    from iobench.findings.advice.commands import ProfileCommand
    from iobench.sources.named_stores import split_stores

    given = {word.partition("=")[0] for word in words}
    parsed = ProfileCommand.parsed(shlex.join(["iobench", "profile", *words]))
    stores = split_stores(parsed.targets)[1] if parsed is not None else ()
    more: list[str] = []
    if "--format" not in given and not stores and ":" not in words[0]:
        more += ["--format", _formats(words)]
    if "--pipeline" not in given and not stores:
        more += ["--pipeline", "own"]  # advice is for our loader, and for scripts that ran
    if not given & {"--batches", "--duration"}:
        more += ["--batches", BATCHES, "--duration", DURATION_S]
    return profile_config([*words, *more])


def _formats(words: Sequence[str]) -> str:
    """Return the source and the store that suits the framework; some frameworks know no source."""
    pairs = zip(words, [*words[1:], ""], strict=True)
    named = [after for word, after in pairs if word == "--framework"]
    named += [word.partition("=")[2] for word in words if word.startswith("--framework=")]
    frameworks = {name.strip() for text in named for name in text.split(",")}
    if frameworks & OF_STORES:
        return "tfrecord"
    return "source,numpy" if "torch" in frameworks else "source,tfrecord"


def _measured(run: Path) -> list[Loading]:
    from iobench.analysis.replay.runs import recorded_runs
    from iobench.analysis.run import open_runs
    from iobench.findings.advice.loading import loading_of

    return [loading_of(each, recorded_runs(each)) for one in open_runs(run) for each in one]


def _advice(run: Path, measured: Sequence[Loading], epochs: int | None) -> Advice:
    from msgspec.structs import replace

    from iobench.errors import ProfileError
    from iobench.findings.advice.advising import advice_of

    advice = advice_of(measured, epochs=epochs)
    if advice is None:
        raise ProfileError(
            f"{run}: no loader delivered a batch; expected a run with a training loop. iobench "
            "report shows what its processes did"
        )
    return replace(advice, run=str(run))


def _try(
    advice: Advice,
    baseline: Loading,
    config: RunConfig | None,
    number: int,
    rounds: int,
    screen: TerminalScreen,
) -> tuple[Sequence[TriedChange], str | None]:
    """Return what came of the best changes, or why none could be tried."""
    from iobench.trials.configurations import baseline_config, changed_config, try_changes

    if config is None:
        return (), (
            "Nothing tried: the loader belongs to the script. Make the change there, record both "
            "with iobench run, and set the runs side by side with iobench compare."
        )
    base = baseline_config(config, baseline)
    every = (*advice.changes, *advice.to_measure)
    possible = [each for each in every if changed_config(base, each.settings) is not None]
    if not possible:
        return (), "Nothing tried: iobench profile can run none of the proposed changes."
    with tempfile.TemporaryDirectory(prefix="iobench-trial-") as folder:
        return try_changes(base, possible[:number], Path(folder), screen, rounds=rounds), None


def _recorded_config(facts: RunFacts, command: Sequence[str]) -> RunConfig | None:
    """Return a profile, with the files, batches and workers that are recorded; None of none."""
    import shlex

    from msgspec.structs import replace

    from iobench.cli.profile_command import profile_config
    from iobench.errors import TrialError
    from iobench.findings.advice.commands import ProfileCommand
    from iobench.masking import MASK

    given = ProfileCommand.parsed(shlex.join(command) if command else facts.command)
    if given is None:
        return None
    if not command:
        if MASK in (facts.command or ""):
            raise TrialError(
                f"{facts.command}: its command was not kept in full, expected words without "
                f"{MASK}; give it again: iobench advise RUN --try N -- COMMAND"
            )
        given = ProfileCommand(facts.sources or given.targets, given.options)
    config = profile_config(given.words())
    workers = facts.asked.get("workers", config.workers)
    return replace(config, batch_size=facts.batch_size or config.batch_size, workers=workers)
