"""From the targets of a command to files that exist and samples that can be loaded."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec.structs import replace

from iobench.datasets.anemoi_store import AnemoiDataset
from iobench.datasets.file_variables import likely_sample_dim
from iobench.datasets.locate import FileLocator, download_missing, locate_files
from iobench.datasets.python_objects import is_object_target, object_dataset
from iobench.datasets.selection import chosen_splits, split_index
from iobench.datasets.source_files import data_files
from iobench.datasets.user_files import UserFiles
from iobench.errors import MissingFileError, OptionError, StorageError, StoreError
from iobench.files.open_files import forget_files
from iobench.files.urls import URL, as_path, is_url
from iobench.registry import dataset_names, find_dataset
from iobench.stores.manifest import MANIFEST_NAME
from iobench.stores.places import choose_place, mark_of

if TYPE_CHECKING:
    from iobench.datasets.contract import Dataset, SampleIndex
    from iobench.sources.request import Screen, SourceRequest

ANEMOI: Final = "anemoi:"
"""Before the path of an anemoi-datasets store."""
KINDS: Final = {
    "named": "named datasets",
    "files": "files",
    "anemoi": "an anemoi store",
    "object": "an object",
}
TAKES: Final = {
    "tiny": ("named",),
    "data_dir": ("named",),
    "download": ("named",),
    "options": ("named", "anemoi", "object"),
    "sample_dim": ("files", "object"),
    "variables": ("files", "object"),
    "target_variables": ("files",),
}
"""Fields of a request and the kinds of sources that take them."""


class Source(msgspec.Struct, frozen=True):
    """The dataset, its files and samples, ready to be loaded."""

    dataset: Dataset
    files: list[Path]
    index: SampleIndex
    place: Path  # where stores and stand-ins are made
    stand_in: bool
    tiny: bool
    sample_dim: str | None  # of files, as it was named, or found


def open_source(request: SourceRequest, screen: Screen) -> Source:
    """Find the files, or make a stand-in, and index their samples."""
    targets = expand_sources(request.targets)
    kind = _kind(targets)
    _check_taken(request, kind)
    if request.data_dir and (isinstance(request.data_dir, URL) or not request.data_dir.is_dir()):
        raise MissingFileError(
            f"--data-dir {request.data_dir}: no such folder of this machine; name the one that "
            "holds the files (files behind URLs are named one by one, or as s3://bucket/*.nc)"
        )
    place = choose_place(store_dir=request.store_dir)
    indexes = place.path / "indexes"
    if kind == "files" and request.sample_dim is None:
        request = _with_sample_dim(request, targets, indexes, screen)
    dataset = _find_dataset(request, kind, targets)
    if request.download:
        _download(dataset, indexes, screen)
    if place.notice and kind == "named" and request.data_dir is None:
        screen.note(place.notice)  # a stand-in may be made there; an index alone is small
    with screen.progress(f"files of {dataset.name}") as move:
        files, locator = locate_files(
            dataset,
            store_root=place.path,
            cache_dir=indexes,
            data_dir=request.data_dir,
            tiny=request.tiny,
            progress=move,
            notice=screen.note,
        )
    if locator.stand_in and files[0].is_relative_to(place.path):
        screen.note(f"no files of {dataset.name} found: running on a stand-in in {place.path}")
    elif locator.stand_in:
        screen.note(f"the files of {dataset.name} in {files[0].parent} are a stand-in's")
    forget_files(str(file) for file in files if not isinstance(file, URL))
    with screen.progress(f"indexing {dataset.name}") as move:
        locator.progress = move
        index = dataset.samples(files, locator)
    files += getattr(dataset, "referenced_files", ())
    if not len(index) and getattr(dataset, "passes", None) is None:
        raise OptionError(f"{dataset.name}: holds no sample; name files that have some")
    for note in index.provenance.get("notes", ()):
        screen.note(note)
    index = split_index(index, request.splits_by)
    for name in chosen_splits(None, request.splits_by):
        numbers = index.splits[name]
        ends = [index.coordinate[number] for number in (numbers[0], numbers[-1])]
        screen.note(f"{name}: {len(numbers)} samples, {ends[0]} to {ends[1]}")
    return Source(
        dataset=dataset,
        files=files,
        index=index,
        place=place.path,
        stand_in=locator.stand_in,
        tiny=locator.tiny,
        sample_dim=request.sample_dim,
    )


def _with_sample_dim(
    request: SourceRequest, targets: Sequence[Any], indexes: Path, screen: Screen
) -> SourceRequest:
    """Return the request with the sample dimension that files most likely have."""
    dataset = UserFiles(targets, sample_dim=None)
    matches = likely_sample_dim(
        dataset.files(FileLocator(cache_dir=indexes)),
        cache_dir=indexes,
        names=(*request.variables, *request.target_variables),
        group=dataset.group,
    )
    if matches is None:
        return request
    dim, why = matches
    screen.note(f"one sample is one index of {dim}, {why}; --sample-dim names another dimension")
    return replace(request, sample_dim=dim)


def split_stores(targets: Sequence[Any]) -> tuple[tuple[Any, ...], tuple[str, ...]]:
    """Return the targets that are no stores, and those that are, each in their order."""
    stores = tuple(dict.fromkeys(target for target in targets if _is_store(target)))
    return tuple(target for target in targets if target not in stores), stores


def _is_store(target: Any) -> bool:
    """Return whether a store is there; raise StoreError of one that somebody began."""
    if not isinstance(target, str):
        return False
    path = as_path(target)
    if isinstance(path, URL):
        if not path.can_list or path.is_pattern():
            return False
        with suppress(StorageError):  # not there, where nobody may list; whoever opens it says so
            return (path / MANIFEST_NAME).is_file()
        return False
    is_name = os.sep not in target and not Path(target).suffix and target in dataset_names()
    if not path.is_dir() or is_name:
        return False
    if not (path / MANIFEST_NAME).is_file() and mark_of(path)[0] in ("store", "probe"):
        raise StoreError(
            f"{path} is not a finished store: it has no {MANIFEST_NAME}; run its conversion again "
            "to finish it"
        )
    return (path / MANIFEST_NAME).is_file()


def expand_sources(targets: Sequence[Any]) -> tuple[Any, ...]:
    """Return the targets with `URL`s for texts that are URLs, and patterns of them spelled out."""
    matches: list[Any] = []
    for target in targets:
        path = as_path(target) if isinstance(target, str) else None
        base, group = _without_group(target)
        if group:
            matches += [f"{each}#{group}" for each in expand_sources([base])]
        elif isinstance(path, URL):
            matches += _matching_urls(path) if path.is_pattern() else [path]
        elif path is None:
            matches.append(target)
        elif glob.has_magic(target) and not path.exists() and not target.startswith(ANEMOI):
            names = sorted(glob.glob(target, recursive=True))  # noqa: PTH207 - without hidden files
            if not names:
                raise MissingFileError(
                    f"{target}: no file matches, seen from {Path.cwd()}; check the spelling"
                )
            matches += names
        else:
            inside = () if target in dataset_names() else data_files(path)
            matches += inside or [str(path) if is_url(target) else target]
    return tuple(matches)


def _without_group(target: Any) -> tuple[str, str]:
    """Return the file, folder or pattern of this machine and the group of ``FILE#group``."""
    if not isinstance(target, str) or "#" not in target or is_url(target) or Path(target).exists():
        return "", ""
    base, _, group = target.rpartition("#")
    is_there = Path(base).exists() or glob.has_magic(base)
    return (base, group) if base and is_there else ("", "")


def _matching_urls(pattern: URL) -> list[URL]:
    if not str(pattern).partition("://")[2].strip("/*"):
        raise OptionError(f"{pattern}: name the bucket or folder whose files are meant")
    if not pattern.can_list:
        raise OptionError(f"{pattern}: a web server lists no files; name them one by one")
    fixed = re.split(r"[*?\[]", pattern.path, maxsplit=1)[0]
    fixed = fixed[: fixed.rfind("/") + 1]
    matches = sorted(pattern.with_path(fixed).glob(pattern.path[len(fixed) :]))
    if not matches:
        raise MissingFileError(
            f"{pattern}: no file matches; quote it, so that the shell leaves it alone, and check "
            "the spelling"
        )
    return [URL(url.with_secrets()) for url in matches]


def _kind(targets: Sequence[Any]) -> str:
    """Return what the targets are: a key of `KINDS`."""
    first = targets[0]
    if is_url(first):
        return "files"
    if not isinstance(first, str):
        return "object"
    first = _without_group(first)[0] or first
    is_path = os.sep in first or bool(Path(first).suffix)
    if len(targets) > 1 or (is_path and Path(first).exists()):
        return "files"
    if first in dataset_names():  # after what is clear without: all that is installed is searched
        return "named"
    if Path(first).exists():
        return "files"
    if first.startswith(ANEMOI):
        return "anemoi"
    if is_object_target(first):
        return "object"
    return "files" if is_path else "named"


def _check_taken(request: SourceRequest, kind: str) -> None:
    """Raise OptionError for what a kind of sources does not take."""
    for field, kinds in TAKES.items():
        value = getattr(request, field)
        if kind not in kinds and value not in (None, False, (), {}):
            option = field.removesuffix("s") if field == "options" else field.replace("_", "-")
            own = "; its own options are given as --option NAME=VALUE" * (kind in TAKES["options"])
            raise OptionError(
                f"--{option}: for {' and '.join(KINDS[each] for each in kinds)}, not for "
                f"{KINDS[kind]}{own}"
            )


def _find_dataset(request: SourceRequest, kind: str, targets: Sequence[Any]) -> Dataset:
    first, options = targets[0], request.options
    if kind == "named":
        return find_dataset(first, **options)
    if kind == "anemoi":
        return AnemoiDataset(first.removeprefix(ANEMOI), **options)
    variables = request.variables or None
    if kind == "files":
        named = request.targets[0]
        is_folder = len(request.targets) == 1 and isinstance(named, str)
        return UserFiles(
            targets,
            target=as_path(named) if is_folder else None,
            sample_dim=request.sample_dim,
            variables=variables,
            target_variables=request.target_variables or None,
        )
    if len(targets) > 1:
        raise OptionError("an object is profiled by itself: name one of them")
    return object_dataset(first, options, sample_dim=request.sample_dim, variables=variables)


def _download(dataset: Dataset, indexes: Path, screen: Screen) -> None:
    """Fetch what is not at hand; the one way to the network."""
    if not hasattr(dataset, "downloads"):
        raise OptionError(f"--download: {dataset.name} has no CliMetLab plugin that fetches it")
    calls = dataset.downloads()
    for one in calls:
        terms = {"terms of use": one.terms_of_use, "cite": one.citation}
        if known := [f"{what}: {text}" for what, text in terms.items() if text]:
            screen.note(f"{one.name}: {'; '.join(known)}")
    with screen.progress(f"downloading {dataset.name}") as move:
        download_missing(calls, FileLocator(cache_dir=indexes), progress=move)
