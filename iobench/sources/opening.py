"""From the targets of a command to files that exist and samples that can be loaded."""

from __future__ import annotations

import glob
import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
from msgspec.structs import replace

from iobench.datasets.anemoi_store import anemoi_dataset
from iobench.datasets.contract import check_steps
from iobench.datasets.download import Downloadable, download_missing
from iobench.datasets.file_description import likely_sample_dim
from iobench.datasets.file_kinds import data_files
from iobench.datasets.locate import FileLocator
from iobench.datasets.objects.source import object_dataset
from iobench.datasets.objects.targets import is_object_target
from iobench.datasets.patterns import FilePattern
from iobench.datasets.selection import split_index
from iobench.datasets.setup_processes import stopwatch
from iobench.datasets.standins import locate_files
from iobench.datasets.user_files import user_files
from iobench.errors import MissingFileError, OptionError, StorageError
from iobench.files.atomic import write_atomically
from iobench.files.objects import RequestCounts, request_counts
from iobench.files.open_files import open_files
from iobench.files.urls import URL, as_path, is_url
from iobench.registry import dataset_names, find_dataset
from iobench.stores.places import choose_place, user_folder

if TYPE_CHECKING:
    from iobench.datasets.contract import Dataset, SampleIndex
    from iobench.sources.request import Screen, SourceRequest

ANEMOI: Final = "anemoi:"
"""Before the path of an anemoi-datasets store."""


Request = TypeVar("Request", bound="SourceRequest")


class Source(msgspec.Struct, frozen=True):
    """The dataset, its files and samples, ready to be loaded."""

    dataset: Dataset
    locator: FileLocator
    files: list[Path]
    index: SampleIndex
    place: Path
    stand_in: bool
    tiny: bool
    setup_s: dict[str, float]


def open_source(request: SourceRequest, screen: Screen) -> Source:
    """Find the files, or make a stand-in, and index their samples."""
    before = request_counts.copy()
    request, note = with_sample_dim(request)
    if note:
        screen.note(note)
    dataset = _find_dataset(request, expand_sources(request.targets))
    check_steps(dataset)
    if isinstance(request.data_dir, Path) and not request.data_dir.is_dir():  # a URL is listed
        raise MissingFileError(
            f"--data-dir {request.data_dir}: no such folder; name the one that holds the files"
        )
    place = choose_place(store_dir=request.store_dir)
    is_elsewhere = request.data_dir is not None or request.files is not None
    if place.notice and _kind(request.targets) == "named" and not is_elsewhere:
        screen.note(place.notice)  # a stand-in may be made there; an index alone is small
    indexes = place.path / "indexes"
    if request.download:
        _download(dataset, indexes, screen)
    watch = stopwatch()
    with screen.progress(f"files of {dataset.name}") as move:
        files, locator = locate_files(
            dataset,
            store_root=place.path,
            cache_dir=indexes,
            data_dir=request.data_dir,
            pattern=None if request.files is None else FilePattern(request.files),
            seed=request.seed,
            scale=request.scale,
            tiny=request.tiny,
            progress=move,
            notice=screen.note,
        )
    setup_s = {}
    if locator.stand_in and files[0].is_relative_to(place.path):
        setup_s["stand-in"] = watch()
        screen.note(f"no files of {dataset.name} found: running on a stand-in in {place.path}")
    elif locator.stand_in:
        screen.note(f"the files of {dataset.name} in {files[0].parent} are a stand-in's")
    open_files.forget(str(file) for file in files if not isinstance(file, URL))
    watch = stopwatch()
    with screen.progress(f"indexing {dataset.name}") as move:
        locator.progress = move
        index = dataset.samples(files, locator)
    if not len(index) and getattr(dataset, "passes", None) is None:
        raise OptionError(f"{dataset.name}: holds no sample; name files that have some")
    for note in index.provenance.get("notes", ()):
        screen.note(note)
    index = split_index(index, request.splits_by, allow_gaps=request.allow_gaps)
    setup_s["index"] = watch() - sum(index.setup.values())
    requests = request_counts.since(before)
    if requests != RequestCounts():
        screen.note(
            f"looking into {len(files)} files of {dataset.name}: {requests.listings} listings, "
            f"{requests.states} questions for a file's state, {requests.ranges} ranges of "
            f"{requests.nbytes:,} bytes in all"
        )
    if not locator.stand_in:
        show_terms_once(dataset.name, index.provenance, screen, terms_file())
    return Source(
        dataset=dataset,
        locator=locator,
        files=files,
        index=index,
        place=place.path,
        stand_in=locator.stand_in,
        tiny=locator.tiny,
        setup_s=setup_s | dict(index.setup),
    )


def with_sample_dim(request: Request) -> tuple[Request, str]:
    """Return the request with a sample dimension of files where none is named, and a note."""
    targets = expand_sources(request.targets)
    if request.sample_dim is not None or _kind(targets) != "files":
        return request, ""
    place = choose_place(store_dir=request.store_dir).path
    dataset = user_files(targets, sample_dim=None)
    matches = likely_sample_dim(
        dataset.files(FileLocator(cache_dir=place / "indexes")),
        cache_dir=place / "indexes",
        names=(*request.variables, *request.target_variables),
        group=dataset.group,
    )
    if matches is None:
        return request, ""
    dim, why = matches
    note = f"one sample is one index of {dim}, {why}; --sample-dim names another dimension"
    return replace(request, sample_dim=dim), note


def expand_sources(targets: Sequence[Any]) -> tuple[Any, ...]:
    """Return the targets with `URL`s for texts that are URLs, and patterns of them spelled out."""
    matches: list[Any] = []
    for target in targets:
        base, group = _without_group(target)
        if group:
            matches += [f"{each}#{group}" for each in expand_sources([base])]
            continue
        path = as_path(target) if isinstance(target, str) else None
        if isinstance(path, URL):
            matches += _matching_urls(path) if path.is_pattern() else [path]
        elif path is None:
            matches.append(target)
        elif glob.has_magic(target) and not path.exists() and not target.startswith(ANEMOI):
            names = sorted(glob.glob(target, recursive=True))  # noqa: PTH207 - as `FilePattern`
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


def _download(dataset: Dataset, indexes: Path, screen: Screen) -> None:
    """Fetch what is not at hand; the one way to the network."""
    if not isinstance(dataset, Downloadable):
        raise OptionError(f"--download: {dataset.name} has no CliMetLab plugin that fetches it")
    downloads = dataset.downloads()
    for one in downloads.calls:
        terms = {"terms_of_use": one.terms_of_use, "citation": one.citation}
        show_terms_once(one.name, terms, screen, terms_file())
    with screen.progress(f"downloading {dataset.name}") as move:
        download_missing(downloads, FileLocator(cache_dir=indexes), progress=move)


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


KINDS: Final = {
    "named": "named datasets",
    "files": "files",
    "anemoi": "an anemoi store",
    "object": "an object",
}
TAKES: Final = {
    "tiny": ("named",),
    "scale": ("named",),
    "data_dir": ("named",),
    "files": ("named",),
    "download": ("named", "object"),
    "options": ("named", "anemoi", "object"),
    "sample_dim": ("files", "object"),
    "variables": ("files", "object"),
    "target_variables": ("files",),
}
"""Fields of a request and the kinds of sources that take them."""


def _find_dataset(request: SourceRequest, targets: Sequence[Any]) -> Dataset:
    """Return the dataset of the targets; raise OptionError for what its kind does not take."""
    kind, first, options = _kind(targets), targets[0], request.options
    for field, kinds in TAKES.items():
        value = getattr(request, field)
        if kind not in kinds and value is not None and value is not False and value not in ((), {}):
            option = field.removesuffix("s") if field == "options" else field.replace("_", "-")
            own = "; its own options are given as --option NAME=VALUE" * (kind in TAKES["options"])
            raise OptionError(
                f"--{option}: for {' and '.join(KINDS[each] for each in kinds)}, not for "
                f"{KINDS[kind]}{own}"
            )
    if kind == "named":
        return find_dataset(first, **options)
    if kind == "anemoi":
        return anemoi_dataset(first.removeprefix(ANEMOI), **options)
    if kind == "files":
        named = request.targets[0]
        is_folder = len(request.targets) == 1 and isinstance(named, str)
        return user_files(
            targets,
            target=as_path(named) if is_folder else None,
            sample_dim=request.sample_dim,
            variables=request.variables or None,
            target_variables=request.target_variables or None,
        )
    if len(targets) > 1:
        raise OptionError("an object is profiled by itself: name one of them")
    return object_dataset(
        first,
        options=options,
        sample_dim=request.sample_dim,
        variables=request.variables or None,
    )


def terms_file() -> Path:
    """Return where it is remembered whose terms have been shown: in the user's cache."""
    return user_folder() / "terms-shown"


def show_terms_once(
    dataset: str, provenance: Mapping[str, Any], screen: Screen, remember: Path
) -> bool:
    """Show terms of use and citation of a dataset unless that was done before, and remember it."""
    texts = {
        "terms of use": " ".join(str(provenance.get("terms_of_use") or "").split()),
        "cite": " ".join(str(provenance.get("citation") or "").split()),
    }
    # A dash is upstream's way to say that there is none.
    terms = "; ".join(f"{what}: {text}" for what, text in texts.items() if text not in ("", "-"))
    if not terms:
        return False
    line = f"{dataset} {hashlib.blake2b(terms.encode(), digest_size=16).hexdigest()}"
    shown: list[str] = []
    with suppress(OSError, UnicodeDecodeError):
        shown = remember.read_text().splitlines()
    if line in shown:
        return False
    screen.note(f"{dataset}: {terms} (shown once)")
    with suppress(OSError, StorageError):
        remember.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(remember, "".join(f"{each}\n" for each in [*shown, line]))
    return True
