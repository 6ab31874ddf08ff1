"""The commands and the lines of code that do what is advised."""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, Self

import msgspec

from iobench.command_options import NOT_OF_STORES, OF_PROFILE, OF_SOURCE, convert_words
from iobench.findings.advice.proposals import OF_STORES, Lever

if TYPE_CHECKING:
    from iobench.findings.advice.loading import Loading
    from iobench.findings.advice.proposals import AdvisedChange

# --full is of runs recorded before it went.
FLAGS: Final = {"--full", *(name for name, option in OF_PROFILE.items() if option.is_flag)}
REPEATED: Final = OF_PROFILE.keys() - {"--out", "--json"}
"""Options that another run has as well; one recorded by an earlier version may have others."""
SETTINGS: Final = ("format", "framework", "pipeline", "workers", "prefetch", "cache")
"""What a profile has options for; anything else is done where the script or the store is made."""
SCRIPT_SETTINGS: Final = ("batch_size", "num_workers", "prefetch_factor", "persistent_workers")
"""Arguments of torch's DataLoader."""
OPENED: Final = ("--data-dir", "--files", "--sample-dim", "--split", "--split-by")
"""Options of a profile that are arguments of `iobench.open_dataset`, as `--variables` is."""


class ProfileCommand(msgspec.Struct, frozen=True):
    """What ``iobench profile`` was called with: what it loads, and options with their values."""

    targets: tuple[str, ...]
    options: tuple[tuple[str, ...], ...]

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
        options = [option for option in self.options if option[0] in chosen]
        return [*self.targets, *(word for option in options for word in _spelled(*option))]

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
        return shlex.join(["iobench", "profile", *words])


def _spelled(name: str, *value: str) -> tuple[str, ...]:
    """Return the words of an option; a value that looks like another one is joined to it."""
    return (f"{name}={value[0]}",) if value and value[0].startswith("-") else (name, *value)


NO_COMMAND: Final = ProfileCommand((), ())


def commands_of(change: AdvisedChange, baseline: Loading) -> tuple[str, ...]:
    """Return the lines that make a change, and for a profile those that measure it."""
    lines: list[str] = []
    given, facts = ProfileCommand.parsed(baseline.facts.command) or NO_COMMAND, baseline.facts
    settings, levers = change.settings, {*change.levers}
    if "stage" in settings:
        return tuple(_staged(change, given, baseline))
    if OF_STORES & levers and "store" not in settings:
        lines.append(_convert(change, given, baseline))
    if {*OF_STORES, Lever.LOADER} & levers:
        lines.extend(_load(change, given, baseline))
    if facts.is_script:
        words = [f"{name}={value}" for name, value in settings.items() if name in SCRIPT_SETTINGS]
        where = "  # made once, before the first epoch" if "made" in settings else ""
        if words:
            lines.append(f"DataLoader(..., {', '.join(words)}){where}")
        if Lever.CACHE in levers:
            lines.append("cat FILES... > /dev/null")
    elif given.targets:
        lines.extend(_profiled(change, given, baseline))
    return tuple(lines)


def _profiled(change: AdvisedChange, given: ProfileCommand, baseline: Loading) -> Iterator[str]:
    """Yield the profile that measures a change."""
    settings = change.settings
    options = {f"--{name}": value for name, value in settings.items() if name in SETTINGS}
    store = settings.get("store", None if "format" in settings else baseline.named_store)
    if store is not None and (options or "store" in settings):
        options.pop("--pipeline", None)
        yield given.varied(options, NOT_OF_STORES, (str(store),))
    elif options:
        without = ("--pipeline",) if settings.get("format", "source") != "source" else ()
        options = _of_one(given, baseline) | options
        options = {name: value for name, value in options.items() if name not in without}
        yield given.varied(options, without, _sources(given, baseline))


def _of_one(given: ProfileCommand, baseline: Loading) -> dict[str, str | int]:
    """Return what says which of the ways is meant, of a profile that compared several."""
    named = {"--format": baseline.format, "--framework": baseline.framework}
    if baseline.store is None:
        named["--pipeline"] = baseline.pipeline
    several = {name for name in named if len(",".join(given.values(name)).split(",")) > 1}
    return {name: value for name, value in named.items() if name in several and value}


def _sources(given: ProfileCommand, baseline: Loading) -> tuple[str, ...]:
    """Return what the samples of a run are made of: all that it was given but finished stores."""
    if baseline.facts.sources is not None:
        return baseline.facts.sources
    return given.targets


def _name(given: ProfileCommand, baseline: Loading) -> str:
    """Return what names the samples; those of a script come from an object of its own."""
    if baseline.facts.is_script:
        return "MODULE:DATASET"
    return next(iter(_sources(given, baseline)), None) or baseline.facts.dataset or "SOURCE"


def _staged(change: AdvisedChange, given: ProfileCommand, baseline: Loading) -> Iterator[str]:
    """Yield what copies the files, what loads the copy, and of a store what measures that."""
    place, folder, store = change.settings["stage"], change.settings["of"], baseline.named_store
    yield shlex.join(["iobench", "stage", str(store or folder), "--to", str(place)])
    if store is None:
        what = "the script" if baseline.facts.is_script else "what loads it"
        yield f"# {folder} in {what}: the folder of the copy, which that command prints"
        return
    copy = f"{place}/{store.rstrip('/').rpartition('/')[2]}"
    size = baseline.loader.batch_size or "BATCH_SIZE"
    more = _of_samples(given, is_store=True)
    yield f'iobench.loader("{copy}", {size}, shuffle=True{more})'
    if given.targets:
        yield given.varied({}, NOT_OF_STORES, (copy,))


def _convert(change: AdvisedChange, given: ProfileCommand, baseline: Loading) -> str:
    settings, name = change.settings, _name(given, baseline)
    stored = str(settings.get("format", "zarr" if "codec" in settings else "numpy"))
    words = [*(_sources(given, baseline) or (name,)), _out(name, stored), *convert_words(stored)]
    words += given.words(OF_SOURCE)[len(given.targets) :]
    for setting in ("codec", "dtype"):
        if setting in settings:
            words += [f"--{setting}", str(settings[setting])]
    return shlex.join(["iobench", "convert", *words])


def _out(name: str, stored: str) -> str:
    """Return the folder that a store is proposed to lie in."""
    short = name.rstrip("/").rpartition("/")[2].rpartition(":")[2] or "samples"
    return f"{'samples' if short == 'DATASET' else short}.{stored.partition(':')[0]}"


def _load(change: AdvisedChange, given: ProfileCommand, baseline: Loading) -> Iterator[str]:
    """Yield the line that loads what was converted, or the dataset itself, by the fast loader."""
    run, facts, settings = baseline.loader, baseline.facts, change.settings
    name, stored = _name(given, baseline), str(settings.get("format", "source"))
    size, more = run.batch_size or "BATCH_SIZE", _of_samples(given, is_store=True)
    known = facts.framework in ("torch", "tensorflow")
    framework = f', framework="{facts.framework}"' if known else ""
    store = settings.get("store", _out(name, stored) if stored != "source" else None)
    if store is not None and settings.get("framework", facts.framework) == "torch":
        workers = f", num_workers={run.workers}" if run.workers else ""
        yield f'DataLoader(iobench.open_store("{store}"), {size}, shuffle=True{workers})'
    elif store is not None:
        yield f'iobench.loader("{store}", {size}, shuffle=True{framework}{more})'
    elif facts.is_script:
        yield "iobench.open_dataset(DATASET).loader(BATCH_SIZE)"
    elif Lever.LOADER in change.levers and baseline.store is not None:
        # Of a probe the report of the run tells where it lies.
        where = "STORE" if baseline.named_store is None else f'"{baseline.named_store}"'
        yield f"iobench.loader({where}, {size}, shuffle=True{framework}{more})"
    elif Lever.LOADER in change.levers:
        targets = ", ".join(map(_text, _sources(given, baseline) or (name,)))
        opened = f"iobench.open_dataset({targets}{_of_source(given)})"
        yield f"{opened}.loader({size}, shuffle=True{_of_samples(given, is_store=False)})"


def _of_samples(given: ProfileCommand, *, is_store: bool) -> str:
    """Return the arguments of a loader that make its samples those of a profile."""
    known = {"window": given.values("--window")}
    if is_store and not given.values("--split-by"):
        known["split"] = given.values("--split")
    return "".join(f", {name}={_text(values[-1])}" for name, values in known.items() if values)


def _of_source(given: ProfileCommand) -> str:
    """Return the arguments of `iobench.open_dataset` that open what a profile did."""
    known: dict[str, Any] = {}
    for name in OPENED:
        if values := given.values(name):
            known[name] = values if name == "--split-by" else values[-1]
    if names := ",".join(given.values("--variables")):
        known["--variables"] = [each.strip() for each in names.split(",")]
    if pairs := [each.partition("=") for each in given.values("--option")]:
        known["--options"] = {name: value for name, _, value in pairs}
    known |= {name: True for name, *value in given.options if not value and name in OF_SOURCE}
    return "".join(
        f", {name[2:].replace('-', '_')}={'True' if value is True else _text(value)}"
        for name, value in known.items()
    )


def _text(value: object) -> str:
    """Return texts as Python has them."""
    return json.dumps(value, ensure_ascii=False)
