"""Fetches a dataset's files through its CliMetLab plugin, into CliMetLab's own cache.

The only way to the network there is, and only on request.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

import msgspec

from iobench.datasets.contract import Progress, no_progress
from iobench.datasets.locate import climetlab_cache_folder
from iobench.datasets.plugin_process import INSTALL, download_through_plugin, missing_in_cache
from iobench.datasets.setup_processes import stopwatch
from iobench.errors import MissingFileError

if TYPE_CHECKING:
    from pathlib import Path

    from iobench.datasets.contract import Locator

DEFAULT_TIMEOUT_S: Final = 3600.0
LEAST_S: Final = 0.2
FULL: Final = 0.85
"""CliMetLab deletes files it has fetched from about here on: 90 % by default."""


class PluginCall(msgspec.Struct, frozen=True):
    """One call of ``climetlab.load_dataset``, that fetches files or opens those at hand."""

    name: str  # of the dataset, as ``climetlab.load_dataset`` takes it
    arguments: Mapping[str, Any]  # its keyword arguments; JSON-ready
    # of the files it needs; empty where that is not known: then it is always called
    urls: tuple[str, ...] = ()
    install: str = INSTALL  # what installs the plugin
    terms_of_use: str = ""
    citation: str = ""  # to be shown before; may be empty
    to_xarray: bool = False  # whether to call ``to_xarray``, too: some plugins fetch only then


class Downloads(msgspec.Struct, frozen=True):
    """What a dataset needs from the network."""

    calls: tuple[PluginCall, ...]  # of plugins
    others: tuple[str, ...] = ()  # URLs of files that are needed, too, and that no plugin fetches


@runtime_checkable
class Downloadable(Protocol):
    """Optional face of a dataset: ``--download``."""

    def downloads(self) -> Downloads:
        """Return what to fetch for the files the user's options choose."""
        ...


def download_missing(
    downloads: Downloads,
    locator: Locator,
    *,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    progress: Progress = no_progress,
) -> int:
    """Fetch what the locator does not find, and return how many files that were."""
    lacking = _missing(downloads.others, locator)
    if lacking:
        raise MissingFileError(
            f"{', '.join(lacking)}: cannot be downloaded and is not in {locator.searched()}; put "
            "it there first, or ask for samples without it"
        )
    asked = [(one, _missing(one.urls, locator)) for one in downloads.calls]
    open_calls = [(one, urls) for one, urls in asked if urls or not one.urls]
    total, before = sum(len(urls) for _, urls in open_calls), 0
    watch = stopwatch()
    for one, urls in open_calls:

        def advance(done: int, _: int, before: int = before) -> None:
            progress(before + done, total)

        download_through_plugin(
            one.name,
            one.arguments,
            timeout_s=max(timeout_s - watch(), LEAST_S),
            install=one.install,
            urls=urls,
            to_xarray=one.to_xarray,
            progress=advance,
        )
        before += len(urls)
        still = missing_in_cache(urls)
        if still:
            raise MissingFileError(
                f"{one.name}: the plugin ended without fetching {', '.join(still)}; "
                f"{_why_missing(climetlab_cache_folder())}"
            )
    return total


def _missing(urls: Sequence[str], locator: Locator) -> list[str]:
    found = locator.find(urls)
    return [url for url, path in zip(urls, found, strict=True) if path is None]


def _why_missing(folder: Path) -> str:
    """Return what may have become of files that a plugin should have fetched."""
    with contextlib.suppress(OSError):
        disk = shutil.disk_usage(folder)
        share = disk.used / (disk.used + disk.free)
        if share > FULL:
            return (
                f"the disk of {folder} is {share:.0%} full, and CliMetLab deletes what it has "
                "fetched beyond its setting maximum-cache-disk-usage: make room, or raise it"
            )
    return "is that file published?"
