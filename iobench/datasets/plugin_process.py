"""Runs the real plugin of a CliMetLab dataset in a process of its own, to fetch files.

CliMetLab by itself tries an unreachable host for hours, and a plugin cannot be asked to stop; a
process can be ended, with all it started.
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
from typing import Any, Final, cast

from iobench.datasets.contract import Progress, no_progress
from iobench.datasets.locate import climetlab_cache_folder, climetlab_cached_files
from iobench.datasets.setup_processes import stopwatch
from iobench.errors import IobenchError, MissingExtraError, MissingFileError, StorageError
from iobench.files.atomic import EXIT_RESUMABLE

INSTALL: Final = "pip install 'iobench[climetlab]'"
CONNECT_S, ANSWER_S = 10, 60
TRIES, RETRY_AFTER_S = 2, 1
LOOK_EVERY_S: Final = 0.2
REASON_LIMIT: Final = 500
CHILD: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.stdin.buffer.readline()); "
    "from iobench.datasets.plugin_process import child_main; child_main()"
)


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
    """
    if importlib.util.find_spec("climetlab") is None:
        raise MissingExtraError(f"--download goes through CliMetLab: {install}")
    cache = _Cache(climetlab_cache_folder())
    watch = stopwatch()
    with _child(name, arguments, to_xarray) as (child, last_lines):
        while child.poll() is None:
            if watch() > timeout_s:
                late = StorageError(
                    f"--download of {name}: not finished after {timeout_s:g} s; so far "
                    f"{cache.grown()}. Finished files are kept: the same command continues from "
                    "there"
                )
                late.exit_code = EXIT_RESUMABLE
                raise late
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
            return len(urls) - len(missing_in_cache(urls, self.folder))
        return 0

    def _sizes(self) -> dict[str, int]:
        sizes = {}
        with contextlib.suppress(OSError):
            for entry in os.scandir(self.folder):
                if entry.name.startswith("url-") and not entry.name.endswith(".lock"):
                    with contextlib.suppress(OSError):  # renamed meanwhile
                        sizes[entry.name] = entry.stat().st_size
        return sizes


def missing_in_cache(urls: Sequence[str], folder: Path | None = None) -> list[str]:
    """Return which URLs CliMetLab's cache lacks, read anew."""
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
    advice = "see whether this machine reaches the host, or copy the files and give --data-dir"
    if "404 " in last:
        advice = "the host has no such file: choose others"
    return MissingFileError(f"--download of {name} {ended}: {last}; {cache.grown()}; {advice}")


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
    """Cut CliMetLab's retries, 500 with two minutes between, to one."""
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
