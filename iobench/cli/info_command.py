"""``iobench info``: what a dataset, a store format, a store or files are."""

from __future__ import annotations

import inspect
import shlex
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from iobench.cli.documents import (
    EMPTY,
    error_tables,
    fact_table,
    object_tables,
    print_answer,
    shape_of,
)
from iobench.cli.screen import TerminalScreen
from iobench.datasets.contract import PIPELINES, Synthesizer
from iobench.datasets.locate import FileLocator, ensure_stand_in, stand_in_folder
from iobench.datasets.published_files import PublishedFiles
from iobench.errors import MissingFileError, OptionError
from iobench.files.urls import URL, as_path
from iobench.registry import (
    dataset_factory,
    dataset_names,
    find_dataset,
    find_format,
    format_names,
    unknown_name,
)
from iobench.report.document import Command, sentences
from iobench.stores.manifest import MANIFEST_NAME
from iobench.stores.places import choose_place, list_places

if TYPE_CHECKING:
    from iobench.datasets.contract import Dataset, SampleIndex
    from iobench.report.document import Table
    from iobench.samples import SampleSpec
    from iobench.sources.request import Screen

TITLES: Final = {
    "dataset": "{name}: {title}",
    "format": "{name}: a store format, layout version {version}",
    "store": "{path}: {format} store of {dataset}",
    "file": "{path}: {format}",
}
IN_TITLE: Final = {"kind", "name", "title", "path", "command"}
IN_TABLES: Final = {"variables", "sample", "statistics", "lossy", "provenance", "dims"}
OF_STATISTICS: Final = ("mean", "std", "min", "max", "n_missing", "n")


def info(*, target: str, data_dir: Path | None, options: dict[str, str], json: bool) -> None:
    """Print what a name, a file or a folder is."""
    facts = _facts(target, data_dir, options)
    title = TITLES[facts["kind"]].format(**facts)
    if facts["kind"] == "format":
        print_answer(title, *sentences(facts["text"]), figures=facts, json=json)
        return
    command = facts.get("command")
    commands = [Command(command, "Profile it with one sample per index")] if command else []
    print_answer(title, *_tables(facts), *commands, figures=facts, json=json)


def _tables(facts: Mapping[str, Any]) -> Iterator[Table]:
    """Yield what is one value, then tables of options, variables, coordinates and so on."""
    sample, provenance = facts.get("sample", facts), facts.get("provenance", {})
    texts = {key: value for key, value in provenance.items() if not isinstance(value, list)}
    whole = {**facts, **texts}
    if sample is not facts:
        whole["sample_nbytes"] = sample["nbytes"]
    several = {key for key, value in whole.items() if _are_objects(value)}
    empty = {key for key, value in whole.items() if value in EMPTY}
    yield fact_table(whole, {*IN_TITLE, *IN_TABLES, *several, *empty})
    for key in sorted(several - IN_TABLES, reverse=True):
        yield from object_tables(key.capitalize(), whole[key])
    yield from object_tables("Variables", [
        {"variable": each["name"], "role": each.get("role"), "dimensions": shape_of(each)}
        | {"dtype": np.dtype(each["dtype"]).name}
        | {key: each.get(key) for key in ("units", "chunk", "codec")}
        for each in sample["variables"]
    ])  # fmt: skip
    yield from object_tables("Statistics", [
        {"split": split, "variable": name} | {key: values.get(key) for key in OF_STATISTICS}
        for split, variables in facts.get("statistics", {}).items()
        for name, values in variables.items()
    ])  # fmt: skip
    yield from error_tables(facts.get("lossy", {}))


def _are_objects(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], Mapping)


def _facts(target: str, data_dir: Path | None, options: dict[str, str]) -> dict[str, Any]:
    if target in dataset_names():
        return describe_dataset(target, options=options, data_dir=data_dir, screen=TerminalScreen())
    path = as_path(target)
    if data_dir or options:
        raise OptionError(f"--data-dir, --option: {path} is no dataset; leave them out")
    if target in format_names():
        return describe_format(target)
    if (path / MANIFEST_NAME).exists():
        return describe_store(path)
    if isinstance(path, URL) or path.exists() or any(sign in target for sign in "*?[#"):
        return describe_files(path)
    raise unknown_name("dataset", target, dataset_names())


def describe_dataset(
    name: str,
    *,
    options: Mapping[str, str],
    data_dir: Path | None,
    screen: Screen,
) -> dict[str, Any]:
    """Return what a dataset is, told from its files, or from a stand-in where none are at hand."""
    dataset = find_dataset(name, **options)
    with _located(dataset, data_dir, screen) as (paths, locator, samples_of):
        with screen.progress(f"indexing {name}") as move:
            locator.progress = move
            index = dataset.samples(paths, locator)
        provenance = dict(index.provenance)
        return {
            "kind": "dataset",
            "name": name,
            "title": dataset.title,
            "options": _options(dataset_factory(name)),
            "told_from": samples_of,
            "stand_in": locator.stand_in,
            "files": {
                "n_files": len(paths),
                "nbytes": sum(path.stat().st_size for path in paths),
                "names": [path.name for path in paths],
            },
            "n_samples": len(index),
            **_samples(index),
            "pipelines": [each for each in PIPELINES if each == "own" or hasattr(dataset, each)],
            "sample": _sample(index.spec),
            "normalisation": provenance.get("normalisation"),
            "fused": list(dataset.fused),
            "terms_of_use": provenance.get("terms_of_use")
            or getattr(dataset, "terms_of_use", None),
            "citation": provenance.get("citation") or getattr(dataset, "citation", None),
        }


def describe_format(name: str) -> dict[str, Any]:
    """Return what a store format says of itself and its options: its docstring, by paragraphs."""
    fmt = find_format(name)
    text = (inspect.getdoc(type(fmt)) or "").replace("``", "")
    paragraphs = [" ".join(paragraph.split()) for paragraph in text.split("\n\n")]
    return {"kind": "format", "name": fmt.name, "version": fmt.version, "text": paragraphs}


def describe_store(path: Path) -> dict[str, Any]:
    """Return what a store holds, checked against its files' sizes."""
    from iobench.stores.finished_store import open_store

    with closing(open_store(path)) as store:
        manifest = store.manifest
        return {
            "kind": "store",
            "path": str(store.path),
            "format": manifest.format,
            "format_version": manifest.format_version,
            "dataset": manifest.dataset,
            "codec": store.codec,
            "n_samples": manifest.n_samples,
            **_samples(store.index()),
            "nbytes": manifest.nbytes,
            "n_shards": len(manifest.shards),
            "n_files": len(manifest.files),
            "sample": _sample(manifest.spec),
            "options": dict(manifest.options),
            "normalisation": dict(manifest.normalisation) or None,
            "statistics": dict(manifest.statistics),
            "lossy": dict(manifest.lossy),
            "provenance": dict(manifest.provenance),
        }


def describe_files(path: Path) -> dict[str, Any]:
    """Return what a file of the user's own, or the first in a folder, holds; how it is profiled."""
    from iobench.datasets.file_variables import describe_file, likely_sample_dim
    from iobench.datasets.source_files import split_group
    from iobench.sources.opening import expand_sources

    files = [path] if isinstance(path, URL) else list(map(as_path, expand_sources([str(path)])))
    cache_dir = choose_place().path / "indexes"
    parted = [split_group(file) for file in files]
    files, group = [file for file, _ in parted], parted[0][1]
    known = describe_file(files[0], cache_dir=cache_dir, group=group)
    result = likely_sample_dim(files, cache_dir=cache_dir, group=group)
    dims = [result[0]] if result else known["sample_dims"][:1]
    words = ["iobench", "profile", str(path), "--sample-dim", *dims]
    nbytes = sum(file.stat().st_size for file in files) if files[0].is_file() else None
    command = shlex.join(words) if dims else None
    where = {"kind": "file", "path": str(path), "n_files": len(files), "first": str(files[0])}
    return {**where, "nbytes": nbytes, **known, "command": command}


def _options(factory: Any) -> list[dict[str, str]]:
    """Return a factory's options: a recipe's own, else what its docstring says of parameters."""
    if isinstance(factory, type) and issubclass(factory, PublishedFiles):
        return [option.described() for option in factory.all_options()]
    text = (inspect.getdoc(factory) or "").partition("Parameters\n----------\n")[2]
    return [{"text": " ".join(text.partition("\n\n")[0].split())}] if text else []


@contextmanager
def _located(
    dataset: Dataset, data_dir: Path | None, screen: Screen
) -> Iterator[tuple[Sequence[Path], FileLocator, str]]:
    """Yield the files, what located them, and whether they are real or a stand-in, in words."""
    real = FileLocator(data_dir=data_dir, cache_dir=Path(tempfile.gettempdir()))
    try:
        paths = dataset.files(real)
    except MissingFileError:
        if data_dir or real.n_found or not isinstance(dataset, Synthesizer):
            raise
    else:
        real.cache_dir = choose_place().path / "indexes"
        yield paths, real, "the files found"
        return
    for place in list_places():
        root = stand_in_folder(dataset, place)
        if (root / "stand-in.json").exists():
            locator = FileLocator(stand_in=root, cache_dir=place / "indexes")
            text = "the stand-in that profiles use: same sizes as the real data"
            yield dataset.files(locator), locator, text
            return
    with tempfile.TemporaryDirectory(prefix="iobench-info-") as folder:
        with screen.progress(f"tiny stand-in of {dataset.name}") as move:
            root = ensure_stand_in(dataset, Path(folder, "files"), tiny=True, progress=move)
        locator = FileLocator(stand_in=root, cache_dir=Path(folder, "indexes"))
        text = "a tiny stand-in made for this answer: real samples may be larger"
        yield dataset.files(locator), locator, text


def _sample(spec: SampleSpec) -> dict[str, Any]:
    variables = [{**variable.to_dict(), "nbytes": variable.nbytes} for variable in spec]
    return {"nbytes": spec.nbytes, "variables": variables}


def _samples(index: SampleIndex) -> dict[str, Any]:
    """Return what samples are along, how long that is, their splits, the first and last name."""
    names = index.coordinate
    return {
        "along": list(index.dims),
        "splits": {split: len(numbers) for split, numbers in index.splits.items()},
        "coordinate": [names[place] for place in {0: 0, len(names) - 1: 0}] if names else [],
        "coordinates": [
            {
                "name": each.name,
                "dims": [*each.dims],
                "units": str(each.attributes.get("units", "")),
            }
            for each in index.meteorology.coordinates
        ],
        "left_out": dict(index.meteorology.left_out),
    }
