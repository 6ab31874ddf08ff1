"""Files through CliMetLab: its cache, downloads by its plugins, and plugins without the network.

A download is the only way to the network there is, and only on request. The plugin runs in a
process of its own: CliMetLab by itself tries an unreachable host for hours, and a plugin cannot be
asked to stop; a process can be ended, with all it started.
"""

from __future__ import annotations

import contextlib
import getpass
import importlib
import importlib.util
import io
import json
import logging
import os
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from iobench.errors import MissingExtraError, MissingFileError, StorageError
from iobench.extras import install_command
from iobench.files.atomic import EXIT_RESUMABLE
from iobench.json_files import parse_json

TIMEOUT_S: Final = 3600.0
LEAST_S: Final = 0.2
REASON_LIMIT: Final = 500
CHILD: Final = (
    "import json, sys; path, *call = json.loads(sys.argv[1]); sys.path[:] = path; "
    "from iobench.datasets.climetlab_files import load_in_child; load_in_child(*call)"
)
ANSWER_S: Final = (10, 60)  # to connect, and to answer
TRIES, RETRY_AFTER_S = 2, 1


class PluginCall(msgspec.Struct, frozen=True):
    """One call of ``climetlab.load_dataset``, that fetches files or opens those at hand."""

    name: str  # of the dataset, as ``climetlab.load_dataset`` takes it
    arguments: Mapping[str, Any]  # its keyword arguments; JSON-ready
    # of the files it needs; empty where that is not known: then it is always called
    urls: tuple[str, ...] = ()
    extras: tuple[str, ...] = ("climetlab",)  # of iobench, that the plugin needs
    package: str = ""  # the plugin, where it is installed apart and without its dependencies
    terms_of_use: str = ""
    citation: str = ""  # to be shown before; may be empty
    to_xarray: bool = False  # whether to call ``to_xarray``, too: some plugins fetch only then


class Downloads(msgspec.Struct, frozen=True):
    """What a dataset needs from the network: what its optional method ``downloads()`` returns."""

    calls: tuple[PluginCall, ...]  # of plugins
    others: tuple[str, ...] = ()  # URLs of files that are needed, too, and that no plugin fetches


# ---- the cache


def cache_folder() -> Path:
    """Return CliMetLab's cache folder: its setting ``cache-directory``, else its default.

    The settings file is one ``key: value`` a line, as CliMetLab writes it.
    """
    text = ""
    with contextlib.suppress(OSError, RuntimeError):  # who has no home has no settings in it
        text = Path("~/.climetlab/settings.yaml").expanduser().read_text()
    setting = re.search(r"^cache-directory:[ \t]*['\"]?(.*?)['\"]?[ \t]*$", text, re.MULTILINE)
    if setting and setting[1]:
        return Path(setting[1]).expanduser()
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a number without a name
        user = str(os.getuid())
    return Path(tempfile.gettempdir(), f"climetlab-{user}")


def cached_files(folder: Path) -> dict[str, Path]:
    """Return the whole files in a CliMetLab cache by their URL."""
    database = folder / "cache-2.db"
    if not database.is_file():
        return {}
    import sqlite3

    try:
        uri = f"{database.absolute().as_uri()}?mode=ro"
        with contextlib.closing(sqlite3.connect(uri, uri=True)) as connection:
            rows = connection.execute("SELECT path, args FROM cache").fetchall()
        entries = [(Path(path), parse_json(args)) for path, args in rows]
    except (sqlite3.Error, ValueError, TypeError) as error:
        raise StorageError(
            f"{database}: cannot be read as the index of CliMetLab's cache ({error}); "
            "give --data-dir"
        ) from error
    return {
        args["url"]: path
        for path, args in entries
        if isinstance(args, dict) and "url" in args and not args.get("parts")
    }


# ---- downloads


def download_through_plugin(call: PluginCall, *, timeout_s: float) -> None:
    """Run a call in a process of its own.

    Files land in CliMetLab's cache; those that are there are not fetched again, and a file cut
    short goes on where it stopped, where the server can.
    """
    if importlib.util.find_spec("climetlab") is None:
        raise MissingExtraError("--download goes through CliMetLab", extra="climetlab")
    request = json.dumps([sys.path, call.name, dict(call.arguments), call.to_xarray])
    try:
        child = subprocess.run(
            [sys.executable, "-P", "-c", CHILD, request],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        late = StorageError(
            f"--download of {call.name}: not finished after {timeout_s:g} s. Finished files are "
            f"kept in {cache_folder()}: the same command continues from there"
        )
        late.exit_code = EXIT_RESUMABLE
        raise late from error
    if not child.returncode:
        return
    lines = child.stdout.decode(errors="replace").splitlines()
    last = next((line for line in reversed(lines) if line.strip()), "it said nothing")
    last = last.strip()[:REASON_LIMIT]
    if last.startswith(("NameError: Cannot find dataset", "ModuleNotFoundError")):
        install = install_command(*call.extras)
        if call.package:
            install += f" && pip install --no-deps {call.package}"
        raise MissingExtraError(f"{call.name} needs its CliMetLab plugin: {install} ({last})")
    ended = f"was ended by signal {-child.returncode}" if child.returncode < 0 else "failed"
    advice = "see whether this machine reaches the host, or copy the files and give --data-dir"
    if "404 " in last:
        advice = "the host has no such file: choose others"
    raise MissingFileError(f"--download of {call.name} {ended}: {last}; {advice}")


def load_in_child(name: str, arguments: Mapping[str, Any], to_xarray: bool) -> None:
    """Load a dataset; what fails ends this process with a traceback."""
    import climetlab

    http: Any = importlib.import_module("multiurl.http")
    patient = http.robust

    def robust(call: Callable[..., Any], *_: Any, **__: Any) -> Any:
        def ask(*arguments: Any, **more: Any) -> Any:
            return call(*arguments, **{**more, "timeout": ANSWER_S})

        return patient(ask, TRIES, RETRY_AFTER_S)

    http.robust = robust  # CliMetLab tries 500 times, with two minutes between
    # A plugin that is not installed is not looked for elsewhere.
    with climetlab.settings.temporary("datasets-catalogs-urls", []):
        loaded = climetlab.load_dataset(name, **arguments)
        if to_xarray:
            loaded.to_xarray()


# ---- the real code of a plugin, on files at hand


@contextlib.contextmanager
def climetlab_offline(user: str) -> Iterator[Any]:
    """Yield CliMetLab, silent, without the network and without looking elsewhere for plugins.

    A file that it does not find it would fetch, for hours where the host cannot be reached; so to
    ask for one is an error.
    """
    from unittest import mock

    try:
        import climetlab
        from climetlab.core import caching
    except ImportError as error:
        raise MissingExtraError(f"{user} needs CliMetLab", extra="climetlab") from error
    if not caching.CACHE.is_alive():  # after a fork: its calls would wait for ever
        caching.CACHE = caching.Cache()
        caching.CACHE.start()

    def refuse(*arguments: Any, **_: Any) -> Any:
        what = next((each for each in arguments if isinstance(each, str | tuple)), "a host")
        # Not an OSError: CliMetLab would try again for hours.
        raise MissingFileError(
            f"{user}: {what} is neither in $CLIMETLAB_MIRROR nor in CliMetLab's cache "
            f"{cache_folder()}; --download fetches it"
        )

    http = importlib.import_module("multiurl.http")
    with (
        quiet_climetlab(),
        mock.patch.object(http, "robust", return_value=refuse),
        mock.patch.object(socket.socket, "connect", refuse),
        mock.patch.object(socket, "getaddrinfo", refuse),
        climetlab.settings.temporary("check-out-of-date-urls", False),
        climetlab.settings.temporary("datasets-catalogs-urls", []),
    ):
        yield climetlab


@contextlib.contextmanager
def quiet_climetlab() -> Iterator[None]:
    """Keep terms of use, progress bars and log lines of CliMetLab off the terminal."""
    logger = logging.getLogger("climetlab")
    level = logger.level
    logger.setLevel(logging.ERROR)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            yield
        finally:
            logger.setLevel(level)
