"""Runs the real code of a CliMetLab plugin on files at hand, with the network cut off.

A file that CliMetLab does not find it would fetch, for hours where the host cannot be reached; so a
connection is an error.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import socket
from collections.abc import Callable, Iterator
from typing import Any

from iobench.errors import IobenchError, MissingExtraError

CONNECT_S, ANSWER_S = 10, 60
TRIES, RETRY_AFTER_S = 2, 1


@contextlib.contextmanager
def climetlab_offline(user: str) -> Iterator[Any]:
    """Yield CliMetLab, silent, without the network and without looking elsewhere for plugins."""
    from unittest import mock

    try:
        import climetlab
        from climetlab.core import caching
    except ImportError as error:
        install = "pip install 'iobench[climetlab]'"
        raise MissingExtraError(f"{user} needs CliMetLab: {install}") from error
    if not caching.CACHE.is_alive():  # after a fork: its calls would wait for ever
        caching.CACHE = caching.Cache()
        caching.CACHE.start()

    def refuse(*arguments: Any, **_: Any) -> Any:
        host = next((each for each in arguments if isinstance(each, str | tuple)), "a host")
        # Not an OSError: CliMetLab would try again for hours.
        raise IobenchError(
            f"{user} tried to reach {host}: the network is used with --download alone"
        )

    with (
        quiet_climetlab(),
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


@contextlib.contextmanager
def fail_fast(instead: Callable[[str], Any] | None = None) -> Iterator[None]:
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
