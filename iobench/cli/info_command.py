"""``iobench info``: what a dataset, a store format, a store or a run is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from iobench.cli.documents import print_answer

if TYPE_CHECKING:
    from pathlib import Path

    from iobench.report.document import Block, Section

FEW: Final = 8
"""More of a kind (files, shards) are shortened."""
FEW_CHANNELS: Final = 32
IN_TITLE: Final = {"kind", "name", "title", "path", "command"}


def info(
    *, target: str, data_dir: Path | None, files: str | None, options: dict[str, str], json: bool
) -> None:
    """Print what a name, a file or a folder is."""
    facts = _facts(target, data_dir, files, options)
    print_answer(facts_title(facts), *_parts(facts), figures=facts, json=json)


def _facts(
    target: str, data_dir: Path | None, files: str | None, options: dict[str, str]
) -> dict[str, Any]:
    from iobench.chunks.zarr_arrays.store import is_zarr
    from iobench.cli import descriptions
    from iobench.cli.screen import TerminalScreen
    from iobench.errors import MissingFileError, OptionError
    from iobench.files.urls import URL, as_path
    from iobench.registry import dataset_names, format_names, unknown_name
    from iobench.runs.folders import holds_runs
    from iobench.stores.manifest import MANIFEST_NAME

    path = as_path(target)
    if target in dataset_names():
        return descriptions.describe_dataset(
            target, options=options, data_dir=data_dir, files=files, screen=TerminalScreen()
        )
    if data_dir or options or files:
        raise OptionError(
            f"--data-dir, --files and --option are for datasets, and {path} is not one; leave them "
            "out"
        )
    if target in format_names():
        return descriptions.describe_format(target)
    if (path / MANIFEST_NAME).exists():
        return descriptions.describe_store(path)
    if not isinstance(path, URL) and holds_runs(path):
        return descriptions.describe_run(path)
    if path.is_file() or is_zarr(path) or (not isinstance(path, URL) and _has_data(path)):
        return descriptions.describe_files(path)
    if path.exists():
        raise OptionError(
            f"{path}: is neither a store (it has no {MANIFEST_NAME}) nor a run (no run.json) nor "
            "a Zarr store, and holds no *.nc, *.grib or *.zarr; name a file in it"
        )
    if isinstance(path, URL):
        raise MissingFileError(f"{path}: no such file, store or folder; check the spelling")
    raise unknown_name("dataset", target, dataset_names())


def _has_data(path: Path) -> bool:
    """Return whether a folder holds data, or a pattern or ``FILE#group`` may name some."""
    from iobench.datasets.user_files import data_files

    return bool(data_files(path)) or (not path.exists() and any(c in str(path) for c in "*?[#"))


def facts_title(facts: Mapping[str, Any]) -> str:
    """Return one line for what was described."""
    match facts["kind"]:
        case "dataset":
            return f"{facts['name']}: {facts['title']}"
        case "format":
            return f"{facts['name']}: a store format, layout version {facts['version']}"
        case "store":
            return f"{facts['path']}: {facts['format']} store of {facts['dataset'] or 'unknown'}"
        case _:
            return f"{facts['path']}: {facts.get('format', facts['kind'])}"


def _parts(facts: Mapping[str, Any]) -> Iterator[Section | Block]:
    from iobench.report.document import Command, Section, properties, sentences

    if facts["kind"] == "format":
        yield from sentences(facts["text"])
        return
    for number, run in enumerate(facts.get("runs", ())):
        rows = [row for name in sorted(run) for row in _rows(name, run[name])]
        yield Section(f"run-{number}", f"as {run.get('format', 'unknown')}", (properties(rows),))
    if facts["kind"] == "run":
        return
    shown = ((name, value) for name, value in facts.items() if name not in IN_TITLE)
    yield properties([row for name, value in shown for row in _rows(name, value)])
    if facts.get("command"):
        yield Command(facts["command"], "Profile it with one sample per index")


def _rows(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield a fact: an object or a list of objects with a row for each."""
    texts: Iterable[str]
    if isinstance(value, Mapping) and value:
        texts = _lines(value)
    elif isinstance(value, list) and value and isinstance(value[0], Mapping):
        texts = [_phrase(each) for each in value[:FEW]]
        if len(value) > FEW:
            texts += [f"and {len(value) - FEW} more"]
    else:
        texts = (_phrase(value, name),)
    for number, text in enumerate(texts):
        yield "" if number else _label(name), text


def _lines(known: Mapping[str, Any]) -> Iterator[str]:
    for name, value in known.items():
        if isinstance(value, list) and value and isinstance(value[0], Mapping):
            yield from map(_phrase, value)
        else:
            yield f"{_label(name)}: {_phrase(value, name)}"


def _label(key: str) -> str:
    return key.removeprefix("n_").removesuffix("_ns").replace("nbytes", "size").replace("_", " ")


def _phrase(value: Any, name: str = "") -> str:
    """Return a value of JSON as words, e.g. ``"size 3, packed yes"``; an array as it is declared.

    Digests of files are for machines, which have them in JSON.
    """
    from iobench.report.units import duration, nbytes, number

    if isinstance(value, Mapping):
        if "dtype" in value and "shape" in value:
            return _array(value)
        inner = ((key, each) for key, each in value.items() if key != "fingerprints")
        return ", ".join(f"{_label(key)} {_phrase(each, key)}" for key, each in inner) or "none"
    if isinstance(value, list):
        few = FEW_CHANNELS if name == "channels" else FEW
        return _shortened([_phrase(inner) for inner in value], few) or "none"
    if value is None:
        return "unknown" if name.endswith(("nbytes", "_ns")) else "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        if name.endswith("nbytes"):
            return nbytes(value)
        if name.endswith("_ns") and "wall" not in name:
            return duration(value)
        return number(value) if isinstance(value, float) else str(value)
    return str(value)


def _array(variable: Mapping[str, Any]) -> str:
    lengths = zip(variable["dims"], variable["shape"], strict=True)
    axes = ", ".join(f"{dim} {length}" for dim, length in lengths)
    text = (
        f"{variable['name']} ({axes}) {variable['dtype']}, {variable['units'] or 'units unknown'}"
    )
    for name in ("role", "chunk", "codec", "channels"):
        if variable.get(name):
            text += f"; {name} {_phrase(variable[name], name)}"
    return text


def _shortened(names: Sequence[str], few: int = FEW) -> str:
    """Return names with commas; of more than ``few`` the last one and how many there are."""
    if len(names) <= few:
        return ", ".join(names)
    return f"{', '.join(names[: few - 1])}, ... {names[-1]} ({len(names)} in all)"
