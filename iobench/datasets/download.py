"""Fetches a dataset's files through its CliMetLab plugin, into CliMetLab's own cache.

The only way to the network there is, and only on request. The plugin runs in a process of its own:
CliMetLab by itself tries an unreachable host for hours, and a plugin cannot be asked to stop; a
process can be ended, with all it started.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

import msgspec

from iobench.datasets.contract import Progress, no_progress
from iobench.datasets.locate import climetlab_cache_folder, climetlab_cached_files
from iobench.datasets.real_plugins import fail_fast
from iobench.datasets.setup_processes import stopwatch
from iobench.errors import IobenchError, MissingExtraError, MissingFileError, StorageError
from iobench.files.atomic import EXIT_RESUMABLE

if TYPE_CHECKING:
    from iobench.datasets.contract import Locator

INSTALL: Final = "pip install 'iobench[climetlab]'"
DEFAULT_TIMEOUT_S: Final = 3600.0
LEAST_S: Final = 0.2
LOOK_EVERY_S: Final = 0.2
REASON_LIMIT: Final = 500
OUTPUT_NBYTES: Final = 1 << 14
"""Of a plugin's output, from its end, among which its error is looked for."""
CHILD: Final = (
    "import json, sys; path, *call = json.loads(sys.argv[1]); sys.path[:] = path; "
    "from iobench.datasets.download import load_in_child; load_in_child(*call)"
)


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

    def missing(urls: Sequence[str]) -> list[str]:
        paths = locator.find(urls)
        return [url for url, path in zip(urls, paths, strict=True) if path is None]

    if absent := missing(downloads.others):
        raise MissingFileError(
            f"{', '.join(absent)}: cannot be downloaded and is not in {locator.searched()}; put "
            "it there first, or ask for samples without it"
        )
    pairs = [(call, missing(call.urls)) for call in downloads.calls]
    due = [(call, urls) for call, urls in pairs if urls or not call.urls]
    total, done = sum(len(urls) for _, urls in due), 0
    watch = stopwatch()
    for call, urls in due:

        def advance(fetched: int, _: int, done: int = done) -> None:
            progress(done + fetched, total)

        left_s = max(timeout_s - watch(), LEAST_S)
        download_through_plugin(call, timeout_s=left_s, urls=urls, progress=advance)
        done += len(urls)
        if still := _missing_in_cache(urls):
            raise MissingFileError(
                f"{call.name}: the plugin ended without fetching {', '.join(still)}; is that file "
                "published? Where the disk is fuller than its setting maximum-cache-disk-usage, "
                "CliMetLab deletes what it has fetched"
            )
    return total


def download_through_plugin(
    call: PluginCall,
    *,
    timeout_s: float,
    urls: Sequence[str] = (),
    progress: Progress = no_progress,
) -> None:
    """Run a call in a process of its own.

    Files land in CliMetLab's cache; those that are there are not fetched again, and a file cut
    short goes on where it stopped, where the server can. ``urls`` are the files to fetch.
    """
    if importlib.util.find_spec("climetlab") is None:
        raise MissingExtraError(f"--download goes through CliMetLab: {INSTALL}")
    watch = stopwatch()
    request = json.dumps([sys.path, call.name, dict(call.arguments), call.to_xarray])
    with tempfile.TemporaryFile() as output:
        child = subprocess.Popen(
            [sys.executable, "-P", "-c", CHILD, request],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            while child.poll() is None:
                if watch() > timeout_s:
                    late = StorageError(
                        f"--download of {call.name}: not finished after {timeout_s:g} s; so far "
                        f"{_progress_text(urls)}. Finished files are kept: the same command "
                        "continues from there"
                    )
                    late.exit_code = EXIT_RESUMABLE
                    raise late
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(LOOK_EVERY_S)
                if urls:
                    progress(len(urls) - len(_missing_in_cache(urls)), len(urls))
        finally:  # with all that it started
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        if child.returncode:
            raise _failure(call, child.returncode, output, urls)


def _missing_in_cache(urls: Sequence[str]) -> list[str]:
    """Return which URLs CliMetLab's cache lacks, read anew; all while its index is being made."""
    cached: Mapping[str, Any] = {}
    with contextlib.suppress(StorageError):
        cached = climetlab_cached_files(climetlab_cache_folder())
    return [url for url in urls if url not in cached or not cached[url].is_file()]


def _progress_text(urls: Sequence[str]) -> str:
    n_done = len(urls) - len(_missing_in_cache(urls))
    return f"{n_done} of {len(urls)} files are in {climetlab_cache_folder()}"


def _failure(
    call: PluginCall, returncode: int, output: IO[bytes], urls: Sequence[str]
) -> IobenchError:
    output.seek(max(0, output.seek(0, os.SEEK_END) - OUTPUT_NBYTES))
    lines = output.read().decode(errors="replace").splitlines()
    last = next((line for line in reversed(lines) if line.strip()), "it said nothing")
    last = last.strip()[:REASON_LIMIT]
    if last.startswith(("NameError: Cannot find dataset", "ModuleNotFoundError")):
        return MissingExtraError(f"{call.name} needs its CliMetLab plugin: {call.install} ({last})")
    ended = f"was ended by signal {-returncode}" if returncode < 0 else "failed"
    advice = "see whether this machine reaches the host, or copy the files and give --data-dir"
    if "404 " in last:
        advice = "the host has no such file: choose others"
    text = f"--download of {call.name} {ended}: {last}; {_progress_text(urls)}; {advice}"
    return MissingFileError(text)


def load_in_child(name: str, arguments: Mapping[str, Any], to_xarray: bool) -> None:
    """Load a dataset; what fails ends this process with a traceback."""
    import climetlab

    no_catalogs = climetlab.settings.temporary("datasets-catalogs-urls", [])
    with fail_fast(), no_catalogs:  # a plugin that is not installed is not looked for elsewhere
        loaded = climetlab.load_dataset(name, **arguments)
        if to_xarray:
            loaded.to_xarray()
