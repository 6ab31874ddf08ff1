"""Fetches a dataset's files through its CliMetLab plugin, into CliMetLab's own cache.

The only way to the network there is, and only on request. The plugin runs in a process of its own
that can be ended: CliMetLab by itself tries an unreachable host for hours.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import json
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, cast, runtime_checkable

from iobench.datasets.contract import Progress, no_progress
from iobench.datasets.locate import climetlab_cache_folder, climetlab_cached_files
from iobench.datasets.processes import stopwatch
from iobench.errors import IobenchError, MissingExtraError, MissingFileError, StorageError

if TYPE_CHECKING:
    from iobench.datasets.contract import Locator

__all__ = [
    "DEFAULT_TIMEOUT_S",
    "Downloadable",
    "Downloads",
    "PluginDownload",
    "download_missing",
    "download_through_plugin",
    "fail_fast",
]

DEFAULT_TIMEOUT_S: Final = 3600.0
INSTALL: Final = "pip install 'iobench[climetlab]'"
CONNECT_S, ANSWER_S = 10, 60
TRIES, RETRY_AFTER_S = 2, 1
LOOK_EVERY_S: Final = 0.2
REASON_LIMIT: Final = 500
CHILD: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.stdin.buffer.readline()); "
    "from iobench.datasets.download import child_main; child_main()"
)


@dataclass(frozen=True, slots=True)
class PluginDownload:
    """One call of ``climetlab.load_dataset`` that fetches files.

    Parameters
    ----------
    name : str
        Of the dataset, as ``climetlab.load_dataset`` takes it.
    arguments : mapping of str to object
        Its keyword arguments; JSON-ready.
    urls : tuple of str
        What it fetches; empty where that is not known: then it is always asked.
    install : str
        What installs the plugin.
    terms_of_use, citation : str
        To be shown before; may be empty.
    to_xarray : bool
        Whether to call ``to_xarray``, too: some plugins fetch only then.
    """

    name: str
    arguments: Mapping[str, Any]
    urls: tuple[str, ...] = ()
    install: str = INSTALL
    terms_of_use: str = ""
    citation: str = ""
    to_xarray: bool = False


@dataclass(frozen=True, slots=True)
class Downloads:
    """What a dataset needs from the network.

    Parameters
    ----------
    calls : tuple of PluginDownload
        What to ask plugins for.
    others : tuple of str
        URLs of files that are needed, too, and that no plugin fetches.
    """

    calls: tuple[PluginDownload, ...]
    others: tuple[str, ...] = ()


@runtime_checkable
class Downloadable(Protocol):
    """Optional face of a dataset: ``--download``."""

    def downloads(self) -> Downloads:
        """Return what to fetch for the files the user's options choose.

        Raises
        ------
        OptionError
            If the options leave the choice open: everything is never fetched by default.
        """
        ...


def download_missing(
    downloads: Downloads,
    locator: Locator,
    *,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    progress: Progress = no_progress,
) -> int:
    """Fetch what the locator does not find, and return how many files that were.

    Parameters
    ----------
    downloads : Downloads
        Calls whose files are all at hand are left out; files no plugin fetches are looked for
        before anything is fetched.
    locator : Locator
        Finds files in CliMetLab's cache; make a new one to find the new files.
    timeout_s : float
        For all of them together.
    progress : Progress
        Called with (files, all files).

    Raises
    ------
    MissingFileError
        If a file no plugin fetches is missing, or a plugin fetched less than it should.
    MissingExtraError, StorageError
        As `download_through_plugin`.
    """
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
            timeout_s=max(timeout_s - watch(), LOOK_EVERY_S),
            install=one.install,
            urls=urls,
            to_xarray=one.to_xarray,
            progress=advance,
        )
        before += len(urls)
        still = _missing_now(urls)
        if still:
            raise MissingFileError(
                f"{one.name}: the plugin ended without fetching {', '.join(still)}; is that file "
                "published?"
            )
    return total


def download_through_plugin(
    name: str,
    arguments: Mapping[str, Any],
    *,
    timeout_s: float,
    install: str = INSTALL,
    urls: Sequence[str] = (),
    to_xarray: bool = False,
    progress: Progress = no_progress,
) -> None:
    """Run ``climetlab.load_dataset(name, **arguments)`` in a process of its own.

    Files land in CliMetLab's cache; those that are there are not fetched again, and a file cut
    short goes on where it stopped, where the server can.

    Parameters
    ----------
    name : str
        Of the dataset.
    arguments : mapping of str to object
        JSON-ready.
    timeout_s : float
        Seconds until the process is ended, with all it started.
    install : str
        What installs the plugin.
    urls : sequence of str
        What it fetches, for progress.
    to_xarray : bool
        Whether to call ``to_xarray`` of what it loaded, too.
    progress : Progress
        Called with (files in the cache, files).

    Raises
    ------
    MissingExtraError
        If CliMetLab or the plugin is not installed.
    MissingFileError
        If a file could not be fetched; with the plugin's last words.
    StorageError
        After ``timeout_s``, saying how far it came.
    """
    if importlib.util.find_spec("climetlab") is None:
        raise MissingExtraError(f"--download goes through CliMetLab: {install}")
    cache = _Cache(climetlab_cache_folder())
    watch = stopwatch()
    with _child(name, arguments, to_xarray) as (child, last_lines):
        while child.poll() is None:
            if watch() > timeout_s:
                raise StorageError(
                    f"--download of {name}: not finished after {timeout_s:g} s; so far "
                    f"{cache.grown()}. Finished files are kept: the same command goes on from there"
                )
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(LOOK_EVERY_S)
            if urls:
                progress(cache.n_held(urls), len(urls))
    if child.returncode:
        raise _failure(name, install, child.returncode, last_lines, cache)


@dataclass(slots=True)
class _Cache:
    """CliMetLab's cache, and what was in it when this was made."""

    folder: Path
    before: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        self.before = self._sizes()

    def grown(self) -> str:
        """Return in words what has come since, unfinished files included."""
        now = self._sizes()
        new = [name for name in now if name not in self.before]
        finished = [name for name in new if not name.endswith((".tmp", ".download"))]
        n_bytes = sum(size - self.before.get(name, 0) for name, size in now.items())
        return f"{len(finished)} files and {max(n_bytes, 0)} bytes came into {self.folder}"

    def n_held(self, urls: Sequence[str]) -> int:
        """Return how many of these are there as whole files."""
        with contextlib.suppress(StorageError):  # its index is being made
            return len(urls) - len(_missing_now(urls, self.folder))
        return 0

    def _sizes(self) -> dict[str, int]:
        sizes = {}
        with contextlib.suppress(OSError):
            for entry in os.scandir(self.folder):
                if entry.name.startswith("url-") and not entry.name.endswith(".lock"):
                    with contextlib.suppress(OSError):  # renamed meanwhile
                        sizes[entry.name] = entry.stat().st_size
        return sizes


def _missing(urls: Sequence[str], locator: Locator) -> list[str]:
    found = locator.find(urls)
    return [url for url, path in zip(urls, found, strict=True) if path is None]


def _missing_now(urls: Sequence[str], folder: Path | None = None) -> list[str]:
    """Return which URLs the cache lacks, read anew."""
    held = climetlab_cached_files(folder or climetlab_cache_folder())
    return [url for url in urls if url not in held or not held[url].is_file()]


def _failure(
    name: str, install: str, returncode: int, last_lines: Sequence[str], cache: _Cache
) -> IobenchError:
    last = next((line for line in reversed(last_lines) if line.strip()), "it said nothing")
    last = last.strip()[:REASON_LIMIT]
    if last.startswith(("NameError: Cannot find dataset", "ModuleNotFoundError")):
        return MissingExtraError(f"{name} needs its CliMetLab plugin: {install} ({last})")
    ended = f"was ended by signal {-returncode}" if returncode < 0 else "failed"
    return MissingFileError(
        f"--download of {name} {ended}: {last}; {cache.grown()}; see whether this machine reaches "
        "the host, or copy the files and give --data-dir"
    )


@contextlib.contextmanager
def _child(
    name: str, arguments: Mapping[str, Any], to_xarray: bool
) -> Iterator[tuple[subprocess.Popen[bytes], deque[str]]]:
    """Start the plugin; on leaving, end it with all that it started."""
    child = subprocess.Popen(
        [sys.executable, "-P", "-c", CHILD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    last_lines: deque[str] = deque(maxlen=20)
    listener = threading.Thread(target=_listen, args=(child, last_lines), daemon=True)
    try:
        listener.start()
        request = json.dumps([name, dict(arguments), to_xarray])
        with contextlib.suppress(BrokenPipeError):  # it is gone: its exit code says why
            stdin = cast(io.BufferedWriter, child.stdin)
            stdin.write(f"{json.dumps(sys.path)}\n{request}\n".encode())
            stdin.flush()  # and stays open: its end tells the child that this process is gone
        yield child, last_lines
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        listener.join()
        cast(io.BufferedWriter, child.stdin).close()


def _listen(child: subprocess.Popen[bytes], last_lines: deque[str]) -> None:
    stream = cast(io.BufferedReader, child.stdout)
    with stream:
        for line in stream:
            last_lines.append(line.decode(errors="replace"))


def child_main() -> None:
    """Load the dataset that standard input names; what fails ends this process with a traceback."""
    name, arguments, to_xarray = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    import climetlab

    no_catalogs = climetlab.settings.temporary("datasets-catalogs-urls", [])
    with fail_fast(), no_catalogs:  # a plugin that is not installed is not looked for elsewhere
        loaded = climetlab.load_dataset(name, **arguments)
        if to_xarray:
            loaded.to_xarray()


def _end_with_parent() -> None:
    while os.read(0, 1024):  # not sys.stdin, whose lock this thread would keep at the exit
        pass
    os.killpg(os.getpgid(0), signal.SIGKILL)


@contextlib.contextmanager
def fail_fast(
    instead: Callable[[str], Any] | None = None,
) -> Iterator[None]:
    """Cut CliMetLab's retries, 500 with two minutes between, to one.

    Parameters
    ----------
    instead : callable, optional
        Called with the URL instead of the network.
    """
    http: Any = importlib.import_module("multiurl.http")
    patient = http.robust

    def brief(call: Callable[..., Any], *_: Any, **__: Any) -> Callable[..., Any]:
        def ask(url: str, *arguments: Any, **more: Any) -> Any:
            if instead is not None:
                return instead(url)
            more["timeout"] = (CONNECT_S, ANSWER_S)
            return call(url, *arguments, **more)

        bold: Callable[..., Any] = patient(ask, TRIES, RETRY_AFTER_S)
        return bold

    http.robust = brief
    try:
        yield
    finally:
        http.robust = patient
