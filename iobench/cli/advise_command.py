"""``iobench advise``: what would make a training wait less, by how much, and at what price."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

import click
from msgspec.structs import replace

from iobench.analysis.diagnosis import Verdict, diagnose
from iobench.analysis.replay.runs import recorded_runs
from iobench.analysis.run import open_runs
from iobench.cli.documents import print_document
from iobench.cli.profile_command import profile_config
from iobench.cli.screen import TerminalScreen
from iobench.errors import OptionError, ProfileError, StorageError, TrialError
from iobench.findings.advice.advising import advice_document, advice_of, trial_section
from iobench.findings.advice.loading import ProfileCommand, baseline_first, loading_of
from iobench.findings.advice.proposals import Evidence
from iobench.findings.free_data import predicted_free
from iobench.masking import MASK
from iobench.recording.run_directory import RunDirectory
from iobench.report.document import Document
from iobench.report.renderers.json_text import json_text
from iobench.runs.reading import holds_runs

if TYPE_CHECKING:
    from iobench.findings.advice.loading import Loading
    from iobench.findings.advice.proposals import Advice
    from iobench.profiling.config import RunConfig
    from iobench.runs.run_facts import RunFacts

LIMITS: Final = ("--batches", "200", "--duration", "20")
"""What a profile made for advice runs at most of each format, where nobody says."""
FREE: Final = "free-data"
"""What ``--try`` calls a script's training on data that are free."""
ROUNDS: Final = 6
OF_STORES: Final = {"tensorflow", "dali"}
"""Frameworks that read stores alone."""


def advise(*, words: Sequence[str], tried: str | None, rounds: int | None, json: bool) -> None:
    """Rank what would help, and print it; run the best of it where that is said."""
    screen = TerminalScreen()
    config, run = None, Path(words[0])
    is_run, is_free, n_tried = holds_runs(run), tried == FREE, 0
    if tried is not None and not is_free:
        n_tried = int(tried) if tried.isdecimal() else 0
        if n_tried < 1:
            raise OptionError(f"--try {tried}: expected a number from 1 on, or {FREE}")
    if is_free and not is_run:
        raise OptionError(
            f"{run}: --try {FREE} expected a run of a script, as iobench run makes it"
        )
    if is_run and words[1:] and not is_free:
        raise OptionError(f"{shlex.join(words[1:])}: expected a run directory alone; leave it out")
    if not is_run:
        from iobench.profiling.profile_run import profile

        config = _profile_for_advice(words)
        run = profile(config, screen)
        screen.note(f"kept in {run}; show this advice again with: iobench advise {run}")
    runs = [loading_of(each, recorded_runs(each)) for one in open_runs(run) for each in one]
    advice = advice_of(runs)
    if advice is None:
        raise ProfileError(
            f"{run}: no loader delivered a batch; expected a run with a training loop. iobench "
            "report shows what its processes did"
        )
    if any(each and diagnose(each.exposure).verdict is Verdict.HUNG for each in runs):
        raise ProfileError(f"{run}: the job hung, expected one that trains; see iobench report")
    advice, baseline = replace(advice, run=str(run)), baseline_first(runs)[0]
    if baseline.facts.free_data:
        raise TrialError(f"{run}: this run had free data; expected a usual one of iobench run")
    if is_free:
        _check_script(baseline, words[1:])
    if not json:
        print_document(advice_document(advice))
    if is_free:
        advice = _tried_free(advice, baseline, words[1:], rounds or 1, screen)
    elif n_tried:
        if config is None and not baseline.facts.is_script:
            config = _recorded_config(baseline.facts)
        advice = _tried(advice, baseline, config, n_tried, rounds or ROUNDS, screen)
    if tried is not None and not json:
        print_document(Document("", (trial_section(advice),)))
    if json:
        click.echo(json_text(advice))


def _profile_for_advice(words: Sequence[str]) -> RunConfig:
    """Return the profile that advice is made from: short, and of one store besides the source."""
    from iobench.sources.opening import split_stores

    given = {word.partition("=")[0] for word in words}
    parsed = ProfileCommand.parsed(shlex.join(["iobench", "profile", *words]))
    stores = split_stores(parsed.targets)[1] if parsed is not None else ()
    more: list[str] = []
    if "--format" not in given and not stores and ":" not in words[0]:
        texts = [] if parsed is None else parsed.values("--framework")
        frameworks = {name.strip() for text in texts for name in text.split(",")}
        formats = "source,numpy" if "torch" in frameworks else "source,tfrecord"
        more += ["--format", "tfrecord" if frameworks & OF_STORES else formats]
    if "--pipeline" not in given and not stores:
        more += ["--pipeline", "own"]  # advice is for our loader, and for scripts that ran
    if not given & {"--batches", "--duration"}:
        more += LIMITS
    return profile_config([*words, *more])


def _recorded_config(facts: RunFacts) -> RunConfig | None:
    """Return a profile, with the files, batches and workers that are recorded; None of none."""
    given = ProfileCommand.parsed(facts.command)
    if given is None:
        return None
    if MASK in (facts.command or ""):
        raise TrialError(
            f"{facts.command}: its command was not kept in full, expected words without {MASK}; "
            "give iobench advise what was profiled, in place of the run"
        )
    config = profile_config(ProfileCommand(facts.sources or given.targets, given.options).words())
    workers = facts.requested.get("workers", config.workers)
    return replace(config, batch_size=facts.batch_size or config.batch_size, workers=workers)


def _tried(
    advice: Advice,
    baseline: Loading,
    config: RunConfig | None,
    number: int,
    rounds: int,
    screen: TerminalScreen,
) -> Advice:
    """Return the advice with what came of the best changes, or why none could be tried."""
    from iobench.trials.configurations import baseline_config, changed_config, try_changes

    if config is None:
        return replace(
            advice,
            not_tried="Nothing tried: the loader belongs to the script; change it there, record it "
            "again with iobench run, and set both runs side by side with iobench compare.",
        )
    base = baseline_config(config, baseline)
    every = [*advice.changes, *advice.to_measure]
    every.sort(key=lambda each: each.evidence is not Evidence.UNKNOWN)
    possible = [each for each in every if changed_config(base, each.settings) is not None]
    if not possible:
        why = "Nothing tried: iobench profile can run none of the proposed changes."
        return replace(advice, not_tried=why)
    with TemporaryDirectory(prefix="iobench-trial-") as folder:
        tried = try_changes(base, possible[:number], Path(folder), screen, rounds=rounds)
    return replace(advice, tried=tuple(tried))


def _check_script(baseline: Loading, command: Sequence[str]) -> None:
    """Refuse a run that is of no usual script, or whose command is not given.

    The one that a run directory holds is not started: that may be somebody else's.
    """
    facts = baseline.facts
    if not facts.is_script:
        raise TrialError(f"{baseline.path}: emulates its step; expected a run of iobench run")
    if not command:
        recorded = facts.command or "python train.py ..."
        raise OptionError(
            f"--try {FREE}: expected the script's command after --; as recorded: "
            f"iobench advise {baseline.path} --try {FREE} -- {recorded}"
        )


def _tried_free(
    advice: Advice, baseline: Loading, command: Sequence[str], rounds: int, screen: TerminalScreen
) -> Advice:
    """Return the advice with what the script gains where data are free; the run notes it, too."""
    from iobench.trials.free_training import try_free_data

    with TemporaryDirectory(prefix="iobench-trial-") as folder:
        tried, steps_per_s = try_free_data(command, Path(folder), screen, rounds=rounds)
    try:
        RunDirectory.open(baseline.path).update(free_steps_per_s=steps_per_s)
    except StorageError as error:
        screen.note(str(error))
    free = predicted_free(baseline.exposure, steps_per_s)
    return replace(advice, tried=(tried,), free_data=free)
