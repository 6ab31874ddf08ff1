"""The commands and the lines of code that do what is advised."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from iobench.analysis.advice.levers import Lever

if TYPE_CHECKING:
    from iobench.analysis.advice.figures import Candidate, LoadingWay
    from iobench.profiles.run_facts import RunFacts

__all__ = ["commands_of", "title_of", "varied_profile", "words_of_profile"]

FLAGS: Final = {"--download", "--tiny", "--json", "--digests"}
"""Options of ``iobench profile`` without a value."""
ONE_RUN: Final = {"--out", "--json"}
OF_SOURCE: Final = {
    "--data-dir",
    "--files",
    "--option",
    "--split",
    "--sample-dim",
    "--variables",
    "--store-dir",
    "--download",
    "--download-timeout",
    "--tiny",
    "--scale",
    "--seed",
}
"""Options that ``iobench convert`` has as well."""
SCRIPT_SETTINGS: Final = (
    "num_workers",
    "prefetch_factor",
    "in_order",
    "persistent_workers",
    "pin_memory",
)
"""Arguments of torch's DataLoader."""
OPTIONS: Final = {
    "format": "--format",
    "framework": "--framework",
    "pipeline": "--pipeline",
    "workers": "--workers",
    "prefetch": "--prefetch",
    "cache": "--cache",
    "store_dir": "--store-dir",
}
STORED: Final = {Lever.FORMAT, Lever.OFFLINE, Lever.CHUNKS, Lever.CODEC, Lever.MEMORY}


@dataclass(frozen=True, slots=True)
class _ProfileWords:
    """What ``iobench profile`` was called with."""

    targets: tuple[str, ...]
    options: tuple[tuple[str, ...], ...]


def title_of(candidate: Candidate) -> str:
    """Return what a change is called, in a few words."""
    settings = candidate.settings
    names = []
    for lever in candidate.levers:
        match lever:
            case Lever.FORMAT if Lever.OFFLINE in candidate.levers:
                continue
            case Lever.FORMAT:
                names.append(f"finished samples as {settings.get('format', 'a store')}")
            case Lever.OFFLINE:
                stored = (
                    f", finished samples as {settings['format']}" if "format" in settings else ""
                )
                names.append(f"decoding and preprocessing moved offline{stored}")
            case Lever.LOADER:
                names.append(_loader_title(settings))
            case Lever.WORKERS:
                number = settings.get("workers", settings.get("num_workers"))
                names.append(f"{number} worker{'s' * (number != 1)}")
            case Lever.PREFETCH:
                ahead = settings.get("prefetch", settings.get("prefetch_factor"))
                names.append(f"a prefetch of {ahead} batches")
            case Lever.KEEP_WORKERS if "made" in settings:
                names.append("one loader for all epochs, its workers kept")
            case Lever.CODEC:
                how = settings.get("codec") or settings.get("dtype")
                names.append(f"stored as {how}" if how else "another codec")
            case _:
                names.append(TITLES[lever])
    return " and ".join(names)


TITLES: Final = {
    Lever.OUT_OF_ORDER: "batches as they are ready, out of order",
    Lever.KEEP_WORKERS: "workers kept from one epoch to the next",
    Lever.PIN: "pinned memory",
    Lever.PAGE_CACHE: "files read once before, into the page cache",
    Lever.MEMORY: "finished samples in memory",
    Lever.CHUNKS: "chunks of one sample each",
}


def _loader_title(settings: Mapping[str, str | int]) -> str:
    framework = settings.get("framework")
    if framework == "native":
        return "the fast loader"
    if framework is not None:
        return f"{framework} as the loader"
    return "iobench's own reading" if settings.get("pipeline") == "own" else "another pipeline"


def commands_of(candidate: Candidate, facts: RunFacts, baseline: LoadingWay) -> tuple[str, ...]:
    """Return the lines that make a change, and for a profile those that measure it.

    Parameters
    ----------
    candidate : Candidate
    facts : RunFacts
        Of the baseline.
    baseline : LoadingWay
    """
    lines: list[str] = []
    words = _words(facts.command)
    name = (words.targets[0] if words else None) or facts.dataset or "SOURCE"
    if facts.is_script:  # its samples come from an object of its own
        name = "MODULE:DATASET"
    if STORED & set(candidate.levers):
        lines.append(_convert(candidate, words, name))
    if {*STORED, Lever.LOADER} & set(candidate.levers):
        lines.extend(_load(candidate, facts, name, baseline))
    if facts.is_script:
        lines.extend(_of_loader(candidate.settings))
        if Lever.PAGE_CACHE in candidate.levers:
            lines.append("cat FILES... > /dev/null")
        return tuple(lines)
    if Lever.OUT_OF_ORDER in candidate.levers:
        lines.extend(_of_loader({"in_order": "False"}))
    if Lever.PIN in candidate.levers:
        lines.extend(_of_loader({"pin_memory": "True"}))
    measured = varied_profile(facts.command, {**_of_one(words, baseline), **candidate.settings})
    if measured is not None and {*candidate.settings} & {*OPTIONS}:
        lines.append(measured)
    return tuple(lines)


def _of_loader(settings: Mapping[str, str | int]) -> Iterator[str]:
    """Yield the line that makes torch's loader so, and where it has to stand."""
    given = [f"{name}={value}" for name, value in settings.items() if name in SCRIPT_SETTINGS]
    if given:
        where = "  # made once, before the first epoch" if "made" in settings else ""
        yield f"DataLoader(..., {', '.join(given)}){where}"


def _of_one(words: _ProfileWords | None, baseline: LoadingWay) -> dict[str, str | int]:
    """Return what says which of the ways is meant, of a profile that compared several."""
    several = {option[0] for option in words.options if "," in option[-1]} if words else set()
    named = {"format": baseline.format, "framework": baseline.framework}
    if baseline.store is None:
        named["pipeline"] = baseline.pipeline
    return {name: value for name, value in named.items() if OPTIONS[name] in several and value}


def varied_profile(command: str | None, settings: Mapping[str, str | int]) -> str | None:
    """Return ``iobench profile`` as it was called, with settings changed.

    None where the run was made by something else.
    """
    words = _words(command)
    if words is None:
        return None
    changed = {OPTIONS[name]: str(value) for name, value in settings.items() if name in OPTIONS}
    if settings.get("format", "source") != "source":
        changed.pop("--pipeline", None)
        dropped = {"--pipeline", *changed, *ONE_RUN}
    else:
        dropped = {*changed, *ONE_RUN}
    kept = [word for option in words.options if option[0] not in dropped for word in option]
    added = [word for pair in changed.items() for word in pair]
    return shlex.join(["iobench", "profile", *words.targets, *kept, *added])


def _words(command: str | None) -> _ProfileWords | None:
    try:
        words = shlex.split(command or "")
    except ValueError:
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
    return _ProfileWords(tuple(targets), tuple(options))


def _convert(candidate: Candidate, words: _ProfileWords | None, name: str) -> str:
    settings = candidate.settings
    stored = str(settings.get("format", "zarr" if "codec" in settings else "numpy"))
    options: Sequence[tuple[str, ...]] = ()
    if words is not None:
        options = [option for option in words.options if option[0] in OF_SOURCE]
    added: list[str] = []
    for setting, option in (("codec", "--codec"), ("dtype", "--dtype")):
        if setting in settings:
            added += [option, str(settings[setting])]
    return shlex.join(
        [
            "iobench",
            "convert",
            *(words.targets if words is not None and words.targets else (name,)),
            _out(candidate, name, stored),
            "--to",
            stored,
            *(word for option in options for word in option),
            *added,
        ]
    )


def _out(candidate: Candidate, name: str, stored: str) -> str:
    """Return the folder that a store is proposed to lie in."""
    short = name.rstrip("/").rpartition("/")[2].rpartition(":")[2] or "samples"
    short = "samples" if short == "DATASET" else short
    folder = f"{candidate.settings['store_dir']}/" if "store_dir" in candidate.settings else ""
    return f"{folder}{short}.{stored}"


def _load(
    candidate: Candidate, facts: RunFacts, name: str, baseline: LoadingWay
) -> tuple[str, ...]:
    """Return the line that loads what was converted, or the dataset itself, by the fast loader."""
    run = baseline.run
    size = run.batch_size or "BATCH_SIZE"
    framework = ', framework="torch"' if facts.framework == "torch" else ""
    framework = ', framework="tensorflow"' if facts.framework == "tensorflow" else framework
    stored = candidate.settings.get("format")
    if stored is None or stored == "source":
        if Lever.LOADER not in candidate.levers or facts.is_script:
            return ("iobench.open_dataset(DATASET).loader(BATCH_SIZE)",) if facts.is_script else ()
        if baseline.store is not None:  # the report of the run tells where it lies
            return (f"iobench.loader(STORE, {size}, shuffle=True{framework})",)
        return (f'iobench.open_dataset("{name}").loader({size}, shuffle=True)',)
    where = _out(candidate, name, str(stored))
    if facts.framework == "torch" and Lever.LOADER not in candidate.levers:
        workers = f", num_workers={run.workers}" if run.workers else ""
        return (f'DataLoader(iobench.open_store("{where}"), {size}, shuffle=True{workers})',)
    return (f'iobench.loader("{where}", {size}, shuffle=True{framework})',)


def words_of_profile(command: str | None) -> list[str] | None:
    """Return what stood behind ``iobench profile``; None of runs that something else made."""
    words = _words(command)
    if words is None:
        return None
    kept = [word for option in words.options if option[0] not in ONE_RUN for word in option]
    return [*words.targets, *kept]
