"""How a training process loads, its machine and its data; commands that do what is advised."""

from __future__ import annotations

import json
import os
import shlex
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Final, Self

import msgspec
import numpy as np
from msgspec.structs import replace

from iobench.analysis.diagnosis import HIDDEN_FRACTION
from iobench.analysis.epochs import epoch_cost
from iobench.analysis.intervals import PARTS, StepSums, step_sums
from iobench.analysis.replay.replay import Machine, machine_of
from iobench.analysis.replay.runs import REPORTED_BATCHES, recorded_runs
from iobench.analysis.storage_reads import epoch_nbytes
from iobench.command_options import NOT_OF_STORES, OF_PROFILE, OF_SOURCE, convert_words
from iobench.findings.advice.proposals import Lever
from iobench.findings.storage import storage_of
from iobench.masking import as_typed
from iobench.recording.span_file import Flag

if TYPE_CHECKING:
    from iobench.analysis.epochs import EpochCost
    from iobench.analysis.exposure_figures import Exposure, PartExposure
    from iobench.analysis.replay.loader_run import LoaderRun
    from iobench.analysis.run import RankRun
    from iobench.findings.advice.proposals import AdvisedChange
    from iobench.runs.run_facts import RunFacts, StoreFacts

TODAY: Final = ("upstream",)
"""Pipelines that are how an application loads now: everything is compared with them."""
CACHED_FRACTION: Final = 0.99  # of the files in the page cache: then all was read from memory
LONGER: Final = 1.1  # times what later epochs take: then the first one is another matter
HARDLY_COLD: Final = 0.05  # of the bytes from storage: too few to be what workers wait for
# --full is of runs recorded before it went.
FLAGS: Final = {"--full", *(name for name, option in OF_PROFILE.items() if option.is_flag)}
REPEATED: Final = OF_PROFILE.keys() - {"--out", "--json"}
"""Options that another run has as well; one recorded by an earlier version may have others."""
SETTINGS: Final = ("format", "framework", "pipeline", "workers", "prefetch", "cache")
"""What a profile has options for; anything else is done where the script or the store is made."""
OF_STORES: Final = {Lever.FORMAT, Lever.CHUNKS, Lever.CODEC}
"""What needs a conversion."""
OF_SCRIPTS: Final = {
    "torch": (
        "DataLoader",
        {
            "workers": "num_workers",
            "prefetch": "prefetch_factor",
            "persistent_workers": "persistent_workers",
            "in_order": "in_order",
        },
    ),
    "native": (
        "iobench.loader",
        {"workers": "threads", "prefetch": "depth", "in_order": "in_order"},
    ),
}
"""Loaders of scripts by framework, and their arguments by setting."""
OWN_OBJECT: Final = ":DATASET"
"""What a script's module makes its samples of; which name and arguments that needs nobody knows."""
PYTHON_VALUES: Final[Mapping[str, Callable[[list[str]], object]]] = {
    "names": lambda values: values[-1].split(","),
    "pairs": lambda values: dict(each.partition("=")[::2] for each in values),
    "texts": list,
}
"""What a function gets for an option of a kind that is not one text."""


class Loading(msgspec.Struct, frozen=True, kw_only=True):
    """How one training process loaded, as it was measured; None is unknown."""

    path: Path  # of the run directory: several training processes have one
    facts: RunFacts
    exposure: Exposure  # without the wait of every step
    loader: LoaderRun  # that is waited for most
    evaluations: tuple[LoaderRun, ...] = ()  # loaders of passes that do not train
    sums: Mapping[str, StepSums] = {}  # of each part that the run has
    label: str = ""
    format: str = ""  # as --format spells it, options and all
    framework: str = ""
    pipeline: str = ""  # what makes samples of the original files; empty of a script
    store: StoreFacts | None = None  # of a known size; None for original files
    cpus: int | None = None  # usable ones, for this rank
    memory_nbytes: int | None = None
    n_samples_all: int | None = None  # of the whole dataset: an epoch
    epoch: EpochCost | None = None  # over all of them
    sample_nbytes: int | None = None  # a finished one
    files_nbytes: int | None = None  # read in an epoch over all samples
    shared_folder: str | None = None  # of all files read, where other machines share it
    is_cached: bool = False  # whether it read from memory, all but a little
    chunked: ProfileCommand | None = None  # the files of a script that chunks were decoded of
    machine: Machine | None = None  # what the workers and the loop share in a replay

    @property
    def named_store(self) -> str | None:
        """How the finished store that it reads is named; None where it is none."""
        return None if self.store is None else self.store.target

    @property
    def judged(self) -> PartExposure:
        """The part that shows what a long training sees."""
        return self.exposure.judged

    @property
    def sample_ns(self) -> float | None:
        """Wall time of a sample; None where samples were not counted."""
        part = self.judged
        return part.wall_ns / part.n_samples if part.n_samples else None

    @property
    def after_first(self) -> str:
        """Of what sentences on later epochs are, where the first one takes longer."""
        epoch = self.epoch
        return " after the first epoch" * (
            epoch is not None and epoch.first_s > LONGER * epoch.later_s
        )

    @property
    def wait_fraction(self) -> float | None:
        """Share of its time that the training loop waits; None where no batch was delivered."""
        return self.judged.wait_fraction if self.judged.n_batches else None

    @property
    def is_hidden(self) -> bool:
        """Whether it waits so little, and costs computing so little, that it is worth no work."""
        return (self.wait_fraction or 0.0) < HIDDEN_FRACTION and not self.slows_steps

    @property
    def slows_steps(self) -> bool:
        """Whether it takes CPU time that computing waits for."""
        return self.exposure.cpus is not None and self.exposure.cpus.slows_steps


def loading_of(rank: RankRun, runs: Sequence[LoaderRun]) -> Loading | None:
    """Return how a training process loads, whose loaders did ``runs``; None without a batch."""
    facts, exposure = rank.about, replace(rank.exposure, waits_ns=())
    if not exposure.has_consumer or not runs:
        return None
    run = max(runs, key=lambda each: each.wait_ns)
    whole, job, is_script = exposure.whole, rank.job or rank, facts.is_script
    hosts = {process.host for process in job.processes}
    ranks_here = sum(each.role == "consumer" and each.host in hosts for each in job.facts)
    cpus = facts.machine.get("cpus")
    cold, resident = whole.cold_fraction, facts.cache.resident_fraction_before or 0.0
    is_cached = resident >= CACHED_FRACTION if cold is None else cold <= HARDLY_COLD
    counted = whole.nbytes // whole.n_samples if whole.n_samples and whole.nbytes else None
    store, files_nbytes = facts.store, facts.files_nbytes
    n_all = (None if store is None else store.n_samples_all) or facts.n_samples_all
    if store is not None and store.n_samples and store.nbytes:
        files_nbytes = store.nbytes * (store.n_samples_all or store.n_samples) // store.n_samples
    else:
        store = None
    n_all = n_all or (_samples_of_epoch(rank, run) if is_script else None)
    return Loading(
        path=rank.path,
        facts=facts,
        exposure=exposure,
        loader=run if run.batch_size else replace(run, batch_size=facts.batch_size),
        evaluations=recorded_runs(rank, max_batches=REPORTED_BATCHES, evaluations=True)
        if exposure.validation is not None and not rank.is_one_of_many
        else (),
        sums={part: sums for part in PARTS if (sums := step_sums(rank, part)) is not None},
        label=facts.label or run.name,
        format=facts.layout or "",
        framework=facts.framework or "",
        pipeline="" if is_script else facts.pipeline,
        store=store,
        cpus=None if cpus is None else max(1, cpus // max(1, ranks_here)),
        memory_nbytes=facts.machine.get("memory_nbytes"),
        n_samples_all=n_all,
        epoch=epoch_cost(rank, n_all),
        sample_nbytes=facts.sample_nbytes or counted,
        files_nbytes=files_nbytes or (epoch_nbytes(rank) if is_script else None),
        shared_folder=_shared_folder(rank) if store is None or store.target else None,
        is_cached=is_cached,
        chunked=_chunked(rank) if is_script else None,
        machine=machine_of(job),
    )


def baseline_first(measured: Iterable[Loading | None]) -> list[Loading]:
    """Return what took turns, the baseline first, of each run the process that waits most."""
    by_path: dict[Path, list[Loading]] = {}
    for each in measured:
        if each is not None:
            by_path.setdefault(each.path, []).append(each)
    loadings = [max(of, key=lambda each: each.exposure.whole.wait_ns) for of in by_path.values()]

    def order(each: Loading) -> tuple[bool, bool, int]:
        return each.pipeline not in TODAY, each.store is not None, int(each.facts.position or 0)

    return sorted(loadings, key=order)


def _shared_folder(rank: RankRun) -> str | None:
    """Return what has all files in it that were read, where other machines share it."""
    near, storage = rank.about.near, rank.cached(storage_of) if rank.about.is_script else None
    if near is None:
        return None
    folder = near.folder
    if folder is None and storage is not None:
        nbytes = {row.name: row.requested_nbytes or 0 for row in storage.bytes}
        far = [name for name in nbytes if near.mount_of(name) is not None]
        # What a script reads besides its data, as settings, may lie elsewhere.
        if 2 * sum(nbytes[name] for name in far) > max(nbytes.values(), default=0):
            folder = os.path.commonpath(far)
    return folder if folder is not None and near.mount_of(folder) is not None else None


def _chunked(rank: RankRun) -> ProfileCommand | None:
    """Return the files whose chunks were counted, variables and dimension of samples."""
    spans, strings = rank.spans, rank.data.strings
    looks = spans[((spans["flags"] & Flag.DECODED) != 0) & (spans["detail"] > 0)]
    if not len(looks):
        return None
    names = [strings[number].rpartition(":") for number in np.unique(looks["detail"]).tolist()]
    dims = Counter(strings[number] for number in looks["label"].tolist() if number)
    files = tuple(dict.fromkeys(str(as_typed(Path(file))) for file, _, _ in names))
    variables = ",".join(dict.fromkeys(name.strip("/") for _, _, name in names))
    options = [("--sample-dim", dims.most_common(1)[0][0])] if dims else []
    return ProfileCommand(files, (*options, ("--variables", variables)))


def _samples_of_epoch(rank: RankRun, run: LoaderRun) -> int | None:
    """Return what the only loader of a script handed out in a whole pass, over all ranks."""
    exposure, passes = rank.exposure, len(run.startup_ns)
    if len(exposure.loaders) > 1 or not run.shutdown_ns.all():
        return None
    if not run.batch_size or not passes or run.is_part:
        return None
    return round(len(run) / passes) * run.batch_size * max(1, len(rank.ranks))


class ProfileCommand(msgspec.Struct, frozen=True):
    """What ``iobench profile`` was called with: what it loads, and options with their values."""

    targets: tuple[str, ...] = ()
    options: tuple[tuple[str, ...], ...] = ()

    @classmethod
    def parsed(cls, command: str | None) -> Self | None:
        """Return a command line in its parts; None where it is none of ``iobench profile``."""
        try:
            words = shlex.split(command or "")
        except ValueError:  # not a command line, whoever wrote it
            return None
        if words[:2] != ["iobench", "profile"]:
            return None
        targets: list[str] = []
        options: list[tuple[str, ...]] = []
        rest = iter(words[2:])
        for word in rest:
            name, equals, value = word.partition("=")
            if not word.startswith("--"):
                targets.append(word)
            elif equals:
                options.append((name, value))
            else:
                options.append((name,) if name in FLAGS else (name, next(rest, "")))
        return cls(tuple(targets), tuple(options))

    def words(self, chosen: Collection[str] = REPEATED) -> list[str]:
        """Return its words, of some options."""
        result = [*self.targets]
        for name, *value in self.options:
            if name in chosen:  # a value that looks like an option is joined to its name
                joined = value and value[0].startswith("-")
                result += [f"{name}={value[0]}"] if joined else [name, *value]
        return result

    def values(self, name: str) -> list[str]:
        """Return what was given for an option, each time."""
        return [option[-1] for option in self.options if option[0] == name and len(option) > 1]

    def varied(
        self,
        changed: Mapping[str, object],
        without: Collection[str] = (),
        targets: tuple[str, ...] | None = None,
    ) -> str:
        """Return the command line with options set to other values, some left out, of others."""
        dropped = {*changed, *without}
        options = [option for option in self.options if option[0] not in dropped]
        options += [(name, str(value)) for name, value in changed.items()]
        words = ProfileCommand(targets or self.targets, tuple(options)).words()
        return _line("profile", *words)


def commands_of(change: AdvisedChange, baseline: Loading) -> tuple[str, ...]:
    """Return the lines that make a change, and for a profile those that measure it."""
    given = ProfileCommand.parsed(baseline.facts.command) or ProfileCommand()
    sources, lines, levers = _sources(given, baseline), [], {*change.levers}
    if Lever.CHUNKS in levers and (cut := baseline.chunked) is not None:
        sources, given = cut.targets, cut
    settings = {name: str(value) for name, value in change.settings.items()}
    stored = None if "store" in settings else settings.get("format")
    ready = settings.get("store", None if stored else baseline.named_store)
    store = ready or ("STORE" if baseline.store else None)
    if "stage" in settings:
        lines.append(_line("stage", ready or settings["of"], "--to", settings["stage"]))
        if ready is None:
            return tuple(lines)
        ready = store = f"{settings['stage']}/{_last_part(ready)}"
    elif stored is not None:
        whose = _class_of(baseline.facts) if sources[0].endswith(OWN_OBJECT) else ""
        store = f"{whose or _last_part(sources[0])}.{stored.partition(':')[0]}"
        if levers & OF_STORES:
            options = given.words(OF_SOURCE)[len(given.targets) :]
            line = _line("convert", *sources, store, *convert_words(stored), *options)
            lines.append(line + f"  # DATASET: a function that returns its {whose}" * bool(whose))
    if levers & {*OF_STORES, Lever.LOADER} or "stage" in settings:
        lines.append(_load(store, given, baseline))
    if baseline.facts.is_script or Lever.ORDER in levers:
        loader, names = OF_SCRIPTS.get(baseline.framework, OF_SCRIPTS["torch"])
        words = [f"{name}={settings[key]}" for key, name in names.items() if key in settings]
        if words:
            each = settings.get("passes", "epoch")
            once = f"  # made once, before the first {each}" * (Lever.KEEP_WORKERS in levers)
            lines.append(f"{loader}(..., {', '.join(words)}){once}")
    elif given.targets:
        without = NOT_OF_STORES if ready else ("--pipeline",) * (stored not in (None, "source"))
        chosen = {f"--{name}": settings[name] for name in SETTINGS if name in settings}
        chosen = {name: value for name, value in chosen.items() if name not in without}
        if chosen or ready != baseline.named_store:
            lines.append(given.varied(chosen, without, (ready,) if ready else sources))
    return tuple(lines)


def _line(*words: str) -> str:
    return shlex.join(["iobench", *words])


def _last_part(name: str) -> str:
    """Return the last part of a path, or of a module's name."""
    return name.rstrip("/").rpartition("/")[2].rpartition(":")[2] or "samples"


def _sources(given: ProfileCommand, baseline: Loading) -> tuple[str, ...]:
    """Return what the samples are made of; those of a script come from an object of its own."""
    facts = baseline.facts
    if facts.is_script:
        return (_module_of(facts.command) + OWN_OBJECT,)
    targets = given.targets if facts.sources is None else facts.sources
    return targets or (facts.dataset or "SOURCE",)


def _class_of(facts: RunFacts) -> str:
    name = facts.dataset or ""  # a class, or words of ours
    return name if name.isidentifier() else "dataset"


def _module_of(command: str | None) -> str:
    """Return the module that a script's command runs."""
    words = (command or "").split()
    if "-m" in words[:-1]:
        return words[words.index("-m") + 1]
    script = next((word for word in words if word.endswith(".py")), "").removesuffix(".py")
    parts = PurePath(script).parts[-script.startswith("/") :]
    return ".".join(parts) if parts and all(map(str.isidentifier, parts)) else "MODULE"


def _load(store: str | None, given: ProfileCommand, baseline: Loading) -> str:
    """Return the line that loads the samples of a profile from a store, or from what they are."""
    size, framework = baseline.loader.batch_size or "BATCH_SIZE", baseline.facts.framework
    in_order = baseline.facts.is_script and not baseline.loader.shuffles
    more = "" if in_order else ", shuffle=True"
    more += _arguments(given, ["--window"])
    if store is None:
        sources = _sources(given, baseline)
        opened = ", ".join(map(_text, sources)) + _arguments(given, OF_SOURCE)
        if baseline.facts.is_script:  # where the object itself is at hand
            opened = "dataset"
        return f"iobench.open_dataset({opened}).loader({size}{more})"
    if not given.values("--split-by"):
        more += _arguments(given, ["--split"])
    if framework in ("torch", "tensorflow"):
        more += f', framework="{framework}"'
    return f'iobench.loader("{store}", {size}{more})'


def _arguments(given: ProfileCommand, names: Collection[str]) -> str:
    """Return options of a profile as the arguments that iobench's functions have for them."""
    result = ""
    for option in map(OF_PROFILE.__getitem__, names):
        values = given.values(option.name)
        if values or (option.name,) in given.options:
            value = _text(PYTHON_VALUES.get(option.kind, _last)(values)) if values else "True"
            result += f", {option.field or option.name[2:].replace('-', '_')}={value}"
    return result


def _last(values: list[str]) -> object:
    return values[-1]


def _text(value: object) -> str:
    """Return texts as Python has them."""
    return json.dumps(value, ensure_ascii=False)
