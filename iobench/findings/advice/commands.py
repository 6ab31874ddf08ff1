"""The commands and the lines of code that do what is advised."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Collection, Mapping
from pathlib import PurePath
from typing import TYPE_CHECKING, Final, Self

import msgspec

from iobench.command_options import NOT_OF_STORES, OF_PROFILE, OF_SOURCE, convert_words
from iobench.findings.advice.proposals import Lever

if TYPE_CHECKING:
    from iobench.findings.advice.loading import Loading
    from iobench.findings.advice.proposals import AdvisedChange

# --full is of runs recorded before it went.
FLAGS: Final = {"--full", *(name for name, option in OF_PROFILE.items() if option.is_flag)}
REPEATED: Final = OF_PROFILE.keys() - {"--out", "--json"}
"""Options that another run has as well; one recorded by an earlier version may have others."""
SETTINGS: Final = ("format", "framework", "pipeline", "workers", "prefetch", "cache")
"""What a profile has options for; anything else is done where the script or the store is made."""
OF_STORES: Final = {Lever.FORMAT, Lever.CHUNKS, Lever.CODEC}
"""What needs a conversion."""
OF_SCRIPTS: Final = {
    "workers": "num_workers",
    "prefetch": "prefetch_factor",
    "persistent_workers": "persistent_workers",
}
"""Arguments of torch's DataLoader."""


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
        store = f"{_last_part(sources[0])}.{stored.partition(':')[0]}"
        if levers & OF_STORES:
            options = given.words(OF_SOURCE)[len(given.targets) :]
            lines.append(_line("convert", *sources, store, *convert_words(stored), *options))
    if levers & {*OF_STORES, Lever.LOADER} or "stage" in settings:
        lines.append(_load(store, given, baseline))
    if baseline.facts.is_script:
        words = [f"{name}={settings[key]}" for key, name in OF_SCRIPTS.items() if key in settings]
        if words:
            each = settings.get("passes", "epoch")
            once = f"  # made once, before the first {each}" * (Lever.KEEP_WORKERS in levers)
            lines.append(f"DataLoader(..., {', '.join(words)}){once}")
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
        return (f"{_module_of(facts.command)}:{facts.dataset or 'DATASET'}",)
    targets = given.targets if facts.sources is None else facts.sources
    return targets or (facts.dataset or "SOURCE",)


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
        opened = ", ".join(map(_text, _sources(given, baseline))) + _arguments(given, OF_SOURCE)
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


PYTHON_VALUES: Final[Mapping[str, Callable[[list[str]], object]]] = {
    "names": lambda values: values[-1].split(","),
    "pairs": lambda values: dict(each.partition("=")[::2] for each in values),
    "texts": list,
}
"""What a function gets for an option of a kind that is not one text."""


def _text(value: object) -> str:
    """Return texts as Python has them."""
    return json.dumps(value, ensure_ascii=False)
