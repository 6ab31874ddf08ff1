"""The commands and the lines of code that do what is advised."""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Final, Self

import msgspec

from iobench.command_options import NOT_OF_STORES, OF_PROFILE, OF_SOURCE, convert_words
from iobench.findings.advice.levers import Lever

if TYPE_CHECKING:
    from iobench.findings.advice.figures import LoadingWay
    from iobench.findings.advice.levers import Candidate
    from iobench.runs.run_facts import RunFacts

FLAGS: Final = {"--full", *(name for name, option in OF_PROFILE.items() if option.is_flag)}
"""``--full`` is of runs recorded before it went."""
ONE_RUN: Final = {"--out", "--json"}
"""Options not to repeat: a run directory is written once, and another run is another one."""
AGAIN: Final = OF_PROFILE.keys() - ONE_RUN
"""Those to repeat; a run recorded by an earlier version may have others."""
SETTINGS: Final = {
    name: OF_PROFILE[f"--{name.replace('_', '-')}"].name
    for name in (
        "format",
        "framework",
        "pipeline",
        "workers",
        "prefetch",
        "cache",
    )
}
"""What a profile can be told; anything else is done where the script or the store is made."""
SCRIPT_SETTINGS: Final = (
    "batch_size",
    "num_workers",
    "prefetch_factor",
    "persistent_workers",
)
"""Arguments of torch's DataLoader."""
STORED: Final = {Lever.FORMAT, Lever.CHUNKS, Lever.CODEC}


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
            elif name in FLAGS:
                options.append((name,))
            else:
                options.append((name, next(rest, "")))
        return cls(tuple(targets), tuple(options))

    def words(self, chosen: Collection[str] | None = None) -> list[str]:
        """Return its words, of some options or, by default, of all that another run may have."""
        retained = [
            option for option in self.options if option[0] in (AGAIN if chosen is None else chosen)
        ]
        return [*self.targets, *(word for option in retained for word in _spelled(*option))]

    def values(self, name: str) -> list[str]:
        """Return what was given for an option, each time."""
        return [option[-1] for option in self.options if option[0] == name and len(option) > 1]

    def varied(
        self,
        changed: Mapping[str, object],
        without: Collection[str] = (),
        targets: tuple[str, ...] | None = None,
    ) -> str:
        """Return the command line with options set to other values, and some left out.

        ``targets`` are what to load instead.
        """
        dropped = {*changed, *without}
        retained = tuple(option for option in self.options if option[0] not in dropped)
        added = tuple((name, str(value)) for name, value in changed.items())
        words = type(self)(targets or self.targets, (*retained, *added)).words()
        return shlex.join(["iobench", "profile", *words])


def _spelled(name: str, *value: str) -> tuple[str, ...]:
    """Return the words of an option; a value that looks like another one is joined to it."""
    return (f"{name}={value[0]}",) if value and value[0].startswith("-") else (name, *value)


def commands_of(candidate: Candidate, facts: RunFacts, baseline: LoadingWay) -> tuple[str, ...]:
    """Return the lines that make a change, and for a profile those that measure it.

    Parameters
    ----------
    facts : RunFacts
        Of the baseline.
    """
    lines: list[str] = []
    given, settings, levers = (
        ProfileCommand.parsed(facts.command),
        candidate.settings,
        {*candidate.levers},
    )
    sources = _sources(given, facts)
    name = (sources[0] if sources else None) or facts.dataset or "SOURCE"
    if facts.is_script:  # its samples come from an object of its own
        name = "MODULE:DATASET"
    if "stage" in settings:
        return tuple(_staged(settings, given, baseline, facts))
    if STORED & levers and "store" not in settings:
        lines.append(_convert(candidate, given, sources, name))
    if {*STORED, Lever.LOADER} & levers:
        lines.extend(_load(candidate, facts, name, baseline, given))
    if facts.is_script:
        lines.extend(_of_loader(settings))
        if Lever.CACHE in levers:
            lines.append("cat FILES... > /dev/null")
        return tuple(lines)
    created = {SETTINGS[each]: value for each, value in settings.items() if each in SETTINGS}
    store = settings.get("store", None if "format" in settings else baseline.given)
    if given is not None and store is not None and (created or "store" in settings):
        created.pop("--pipeline", None)
        of_one = {
            name: value for name, value in _of_one(given, baseline).items() if name in created
        }
        lines.append(given.varied(of_one | created, NOT_OF_STORES, (str(store),)))
    elif given is not None and created:
        stored = settings.get("format", "source") != "source"
        of_one = _of_one(given, baseline)
        if stored:
            of_one.pop("--pipeline", None)
            created.pop("--pipeline", None)
        without = {"--pipeline"} if stored else ()
        lines.append(given.varied(of_one | created, without, sources))
    return tuple(lines)


def _sources(given: ProfileCommand | None, facts: RunFacts) -> tuple[str, ...]:
    """Return what the samples of a run are made of: all that it was given but finished stores."""
    if facts.sources is not None:
        return facts.sources
    return given.targets if given is not None else ()


def _staged(
    settings: Mapping[str, str | int],
    given: ProfileCommand | None,
    baseline: LoadingWay,
    facts: RunFacts,
) -> Iterator[str]:
    """Yield what copies the files, and what loads the copy."""
    place, folder = str(settings["stage"]), str(settings["of"])
    if baseline.given is not None:
        yield shlex.join(["iobench", "stage", baseline.given, "--to", place])
        yield from _of_copy(f"{place}/{_name(baseline.given)}", given, baseline)
        return
    yield shlex.join(["iobench", "stage", folder, "--to", place])
    what = "the script" if facts.is_script else "what loads it"
    yield f"# {folder} in {what}: the folder of the copy, which that command prints"


def _of_copy(copy: str, given: ProfileCommand | None, baseline: LoadingWay) -> Iterator[str]:
    """Yield what loads the copy of a finished store, and what measures that."""
    size, more = baseline.run.batch_size or "BATCH_SIZE", _of_samples(given, is_store=True)
    yield f'iobench.loader("{copy}", {size}, shuffle=True{more})'
    if given is not None:
        yield given.varied({}, NOT_OF_STORES, (copy,))


def _name(store: str) -> str:
    return store.rstrip("/").rpartition("/")[2]


def _of_loader(settings: Mapping[str, str | int]) -> Iterator[str]:
    """Yield the line that makes torch's loader so, and where it has to stand."""
    given = [f"{name}={value}" for name, value in settings.items() if name in SCRIPT_SETTINGS]
    if given:
        where = "  # made once, before the first epoch" if "made" in settings else ""
        yield f"DataLoader(..., {', '.join(given)}){where}"


def _of_one(given: ProfileCommand, baseline: LoadingWay) -> dict[str, object]:
    """Return what says which of the ways is meant, of a profile that compared several."""
    names = [option[0] for option in given.options]
    several = {option[0] for option in given.options if "," in option[-1]}
    several |= {name for name in names if names.count(name) > 1}
    named = {"--format": baseline.format, "--framework": baseline.framework}
    if baseline.store is None:
        named["--pipeline"] = baseline.pipeline
    return {name: value for name, value in named.items() if name in several and value}


def _convert(
    candidate: Candidate, given: ProfileCommand | None, sources: tuple[str, ...], name: str
) -> str:
    settings = candidate.settings
    stored = str(settings.get("format", "zarr" if "codec" in settings else "numpy"))
    options = given.words(OF_SOURCE)[len(given.targets) :] if given else []
    added = [
        word
        for setting in ("codec", "dtype")
        if setting in settings
        for word in (f"--{setting}", str(settings[setting]))
    ]
    out = _out(candidate, name, stored)
    words = [*(sources or (name,)), out, *convert_words(stored), *options, *added]
    return shlex.join(["iobench", "convert", *words])


def _out(candidate: Candidate, name: str, stored: str) -> str:
    """Return the folder that a store is proposed to lie in."""
    short = name.rstrip("/").rpartition("/")[2].rpartition(":")[2] or "samples"
    short = "samples" if short == "DATASET" else short
    return f"{short}.{stored.partition(':')[0]}"


def _load(
    candidate: Candidate,
    facts: RunFacts,
    name: str,
    baseline: LoadingWay,
    given: ProfileCommand | None,
) -> Iterator[str]:
    """Yield the line that loads what was converted, or the dataset itself, by the fast loader."""
    run, stored = baseline.run, candidate.settings.get("format", "source")
    size = run.batch_size or "BATCH_SIZE"
    known = facts.framework in ("torch", "tensorflow")
    framework = f', framework="{facts.framework}"' if known else ""
    named = candidate.settings.get("store")
    more = _of_samples(given, is_store=True)
    if named is not None or stored != "source":
        where = named or _out(candidate, name, str(stored))
        if candidate.settings.get("framework", facts.framework) == "torch":
            workers = f", num_workers={run.workers}" if run.workers else ""
            yield f'DataLoader(iobench.open_store("{where}"), {size}, shuffle=True{workers})'
        else:
            yield f'iobench.loader("{where}", {size}, shuffle=True{framework}{more})'
    elif facts.is_script:
        yield "iobench.open_dataset(DATASET).loader(BATCH_SIZE)"
    elif Lever.LOADER in candidate.levers and baseline.store is not None:
        # Of a probe the report of the run tells where it lies.
        where = "STORE" if baseline.given is None else f'"{baseline.given}"'
        yield f"iobench.loader({where}, {size}, shuffle=True{framework}{more})"
    elif Lever.LOADER in candidate.levers:
        targets = ", ".join(map(_text, _sources(given, facts) or (name,)))
        of_samples = _of_samples(given, is_store=False)
        opened = f"iobench.open_dataset({targets}{_of_source(given)})"
        yield f"{opened}.loader({size}, shuffle=True{of_samples})"


def _of_samples(given: ProfileCommand | None, *, is_store: bool) -> str:
    """Return the arguments of a loader that make its samples those of a profile.

    Splits by coordinates a loader does not make.
    """
    if given is None:
        return ""
    known = {"window": given.values("--window")}
    if is_store and not given.values("--split-by"):
        known["split"] = given.values("--split")
    return "".join(f", {name}={_text(values[-1])}" for name, values in known.items() if values)


def _of_source(given: ProfileCommand | None) -> str:
    """Return the arguments of `iobench.open_dataset` that open what a profile did."""
    if given is None:
        return ""
    known: dict[str, str] = {}
    for name in ("--data-dir", "--files", "--sample-dim", "--split"):
        if values := given.values(name):
            known[name] = _text(values[-1])
    several = {
        "--variables": [part for value in given.values("--variables") for part in value.split(",")],
        "--split-by": given.values("--split-by"),
    }
    for name, values in several.items():
        if values:
            known[name] = f"[{', '.join(_text(each.strip()) for each in values)}]"
    if pairs := [each.partition("=") for each in given.values("--option")]:
        known["--options"] = f"{{{', '.join(f'{_text(n)}: {_text(v)}' for n, _, v in pairs)}}}"
    known |= dict.fromkeys((option[0] for option in given.options if len(option) == 1), "True")
    taken = {
        name: value for name, value in known.items() if name in OF_SOURCE or name == "--options"
    }
    return "".join(f", {name[2:].replace('-', '_')}={value}" for name, value in taken.items())


def _text(value: str) -> str:
    """Return a text as Python has it."""
    return json.dumps(value, ensure_ascii=False)
