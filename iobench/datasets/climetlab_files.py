"""Files through CliMetLab: its cache, downloads by its plugins, and plugins without the network.

A download is the only way to the network there is, and only on request. The plugin runs in a
process of its own, which Ctrl-C ends with all it started.
"""

from __future__ import annotations

import contextlib
import getpass
import importlib
import importlib.util
import io
import logging
import os
import re
import socket
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from iobench.datasets.setup_processes import run_jobs
from iobench.errors import MissingExtraError, MissingFileError, StorageError, in_one_line
from iobench.extras import install_command
from iobench.json_files import parse_json

ANSWER_S: Final = (10, 60)  # to connect, and to answer
TRIES, RETRY_AFTER_S = 2, 1


class PluginCall(msgspec.Struct, frozen=True):
    """One call of ``climetlab.load_dataset``, that fetches files or opens those at hand."""

    name: str  # of the dataset, as ``climetlab.load_dataset`` takes it
    arguments: Mapping[str, Any]  # its keyword arguments; JSON-ready
    urls: tuple[str, ...] = ()  # of the files it fetches
    extras: tuple[str, ...] = ("climetlab",)  # of iobench, that the plugin needs
    package: str = ""  # the plugin, where it is installed apart and without its dependencies
    terms_of_use: str = ""
    citation: str = ""  # to be shown before; may be empty


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


def download_through_plugin(call: PluginCall) -> None:
    """Run a call in a process of its own.

    Files land in CliMetLab's cache; those that are there are not fetched again, and a file cut
    short goes on where it stopped, where the server can.
    """
    if importlib.util.find_spec("climetlab") is None:
        raise MissingExtraError("--download goes through CliMetLab", extra="climetlab")
    for _ in run_jobs(_fetch, [call], processes=0):
        pass


def _fetch(call: PluginCall) -> None:
    what = f"--download of {call.name}"
    advice = (
        "choose files that are published, see whether this machine reaches the host, or copy the "
        "files and give --data-dir"
    )
    with in_one_line(f"{what} raised", MissingFileError, advice):
        try:
            with silent_climetlab(what, offline=False) as climetlab:
                climetlab.load_dataset(call.name, **call.arguments)
        except (NameError, ModuleNotFoundError) as error:
            if isinstance(error, NameError) and not str(error).startswith("Cannot find dataset"):
                raise
            install = install_command(*call.extras)
            if call.package:
                install += f" && pip install --no-deps {call.package}"
            raise MissingExtraError(f"{what} needs its plugin: {install} ({error})") from error


# ---- CliMetLab itself


@contextlib.contextmanager
def silent_climetlab(user: str, *, offline: bool = True) -> Iterator[Any]:
    """Yield CliMetLab without its texts and progress bars, and without catalogues elsewhere.

    By itself it tries an unreachable host for hours. Offline, to ask for a file that is not here is
    an error.
    """
    from unittest import mock

    with contextlib.ExitStack() as until_over:
        until_over.enter_context(contextlib.redirect_stdout(io.StringIO()))
        until_over.enter_context(contextlib.redirect_stderr(io.StringIO()))
        try:
            import climetlab
            from climetlab.core import caching
        except ImportError as error:
            raise MissingExtraError(f"{user} needs CliMetLab", extra="climetlab") from error
        if not caching.CACHE.is_alive():  # after a fork: its calls would wait for ever
            caching.CACHE = caching.Cache()
            caching.CACHE.start()
        http: Any = importlib.import_module("multiurl.http")
        patient, logger = http.robust, logging.getLogger("climetlab")

        def ask(call: Any, *_: Any, **__: Any) -> Any:
            def ask_once(*arguments: Any, **more: Any) -> Any:
                return call(*arguments, **{**more, "timeout": ANSWER_S})

            return patient(ask_once, TRIES, RETRY_AFTER_S)

        def refuse(*arguments: Any, **_: Any) -> Any:
            what = next((each for each in arguments if isinstance(each, str | tuple)), "a host")
            # Not an OSError: CliMetLab would try again for hours.
            raise MissingFileError(
                f"{user}: {what} is neither in $CLIMETLAB_MIRROR nor in CliMetLab's cache "
                f"{cache_folder()}; load it once with CliMetLab itself"
            )

        until_over.callback(logger.setLevel, logger.level)
        logger.setLevel(logging.ERROR)
        robust = (lambda *_, **__: refuse) if offline else ask
        patches: list[Any] = [mock.patch.object(http, "robust", robust)]
        temporary = climetlab.settings.temporary
        if offline:
            patches.append(temporary("check-out-of-date-urls", False))
            patches.append(mock.patch.object(socket.socket, "connect", refuse))
            patches.append(mock.patch.object(socket, "getaddrinfo", refuse))
        for each in (*patches, temporary("datasets-catalogs-urls", [])):
            until_over.enter_context(each)
        yield climetlab
