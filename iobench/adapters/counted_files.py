"""Files of the operating system: ``open``, whose raw file times its reads, and descriptors."""

from __future__ import annotations

import builtins
import io
import os
import stat
import sys
from typing import TYPE_CHECKING, Any, Final

from iobench.adapters import scope
from iobench.adapters.notes import file_name
from iobench.recording import activation
from iobench.recording.kinds import Kind
from iobench.recording.outside import describe

if TYPE_CHECKING:
    from collections.abc import Callable

    from iobench.adapters.patches import Arguments, Options, Patches
    from iobench.recording.outside import OutsideSpan
    from iobench.recording.recorder import Recorder

READ_MODES: Final = frozenset({"r", "rb", "br", "rt", "tr"})
# No data lie there; psutil, our own counters and every new worker read them all the time.
NO_DATA: Final = ("/proc/", "/sys/", os.devnull, "/dev/zero", "/dev/random", "/dev/urandom")
BUFFER_LIMIT: Final = 8 << 20

_readinto: Final = io.FileIO.readinto
_readall: Final = io.FileIO.readall
_read: Final = io.FileIO.read


class CountedFile(io.FileIO):
    """The raw file under what ``open`` returned while recording: its reads are timed."""

    text_name = ""
    _description: tuple[Recorder | None, bytes] = (None, b"")

    def __repr__(self) -> str:
        # Python 3.13 tells a class that is derived from FileIO by its own name alone.
        return super().__repr__().replace("<FileIO ", "<_io.FileIO ", 1)

    def readinto(self, buffer: Any) -> int | None:
        """Read into a buffer, as FileIO does."""
        count: int | None = self._timed(_readinto, buffer)
        return count

    def readall(self) -> bytes:
        """Read to the end, as FileIO does."""
        data: bytes = self._timed(_readall)
        return data

    def read(self, size: int | None = -1) -> bytes:
        """Read at once, as FileIO does; called on the raw file alone."""
        data: bytes = self._timed(_read, size)
        return data

    def _timed(self, read: Callable[..., Any], *args: Any) -> Any:
        recorder = activation._active
        lane = None if recorder is None else scope.lane_to_time(recorder)
        if lane is None:
            return read(self, *args)
        result: Any = None
        now_ns = lane.now_ns
        start_ns = now_ns()
        try:
            result = read(self, *args)
        finally:
            end_ns = now_ns()
            owner, described = self._description
            if owner is not recorder:
                described = describe(lane.recorder, Kind.READ, "", self.text_name)
                self._description = (lane.recorder, described)
            # No count: it failed, or is a file that would have to be waited for.
            nbytes = -1 if result is None else result if type(result) is int else len(result)
            lane.write(start_ns, end_ns, nbytes, -1, described)
            if lane.tally is not None:
                lane.tally.append((Kind.READ, "", start_ns, end_ns, nbytes))
        return result


# Seen by whoever asks for the class of ``file.buffer.raw``.
CountedFile.__name__ = CountedFile.__qualname__ = "FileIO"


def adapt(patches: Patches, module: Any) -> None:
    """Put a timed ``open`` in the place of the builtin one and of ``io.open``."""
    is_shared = builtins.open is module.open
    patches.put(module, "open", _timed_open)
    ours = module.open
    if is_shared:  # somebody's own must go on being called
        patches.put(builtins, "open", lambda _: ours)


def _timed_open(original: Callable[..., Any]) -> Callable[..., Any]:
    def open_file(*args: Any, **kwargs: Any) -> Any:
        recorder = activation._active
        if recorder is None or not _reads_file(args, kwargs) or scope.where_now() is None:
            return original(*args, **kwargs)
        span = scope.begin(recorder, Kind.OPEN)
        if span is None:
            # Inside of what is timed as a whole; its file may outlive it and be read elsewhere.
            return _open_counted(*args, **kwargs)
        with span:
            span.detail = file_name(args[0])
            return _open_counted(*args, **kwargs)

    return open_file


def _reads_file(args: Arguments, kwargs: Options) -> bool:
    """Return whether this is the plain opening of a named file for reading."""
    try:
        return bool(args) and _is_plain(*args, **kwargs)
    except TypeError:
        return False


def _is_plain(
    file: Any,
    mode: Any = "r",
    buffering: Any = -1,
    encoding: Any = None,
    errors: Any = None,
    newline: Any = None,
) -> bool:
    name = file if type(file) is str else os.fspath(file)
    if type(name) is not str or name.startswith(NO_DATA):
        return False
    if type(mode) is not str or mode not in READ_MODES:
        return False
    if type(buffering) is not int or buffering < -1 or buffering == 1:
        return False
    if "b" in mode:
        return encoding is errors is newline is None
    return _TEXT_IS_OURS and buffering != 0  # that is an error


# The warning of a missing encoding names the line that opens the file.
_TEXT_IS_OURS: Final = not sys.flags.warn_default_encoding


def _open_counted(
    file: Any,
    mode: str = "r",
    buffering: int = -1,
    encoding: str | None = None,
    errors: str | None = None,
    newline: str | None = None,
) -> Any:
    """Open as ``open`` does, over a raw file whose reads are timed."""
    raw = CountedFile(os.fspath(file))
    raw.text_name = file_name(file)
    opened: Any = raw
    if not buffering:
        return raw
    try:
        lines = buffering < 0 and raw.isatty()
        opened = io.BufferedReader(raw, _buffer_nbytes(raw) if buffering < 0 else buffering)
        if "b" in mode:
            return opened
        opened = io.TextIOWrapper(opened, encoding, errors, newline, line_buffering=lines)
        opened.mode = mode
    except BaseException:
        opened.close()
        raise
    return opened


def _buffer_nbytes(raw: io.FileIO) -> int:
    nbytes: int = getattr(raw, "_blksize", io.DEFAULT_BUFFER_SIZE)
    if sys.version_info >= (3, 14):
        return max(min(nbytes, BUFFER_LIMIT), io.DEFAULT_BUFFER_SIZE)
    return nbytes


def opens_descriptor(args: Arguments, kwargs: Options) -> bool:
    """Say whether ``os.open`` opens a file to read it."""
    flags = args[1] if len(args) > 1 else kwargs["flags"]
    if flags & (os.O_WRONLY | os.O_RDWR | os.O_DIRECTORY):
        return False
    return not file_name(args[0] if args else kwargs["path"]).startswith(NO_DATA)


def is_regular(args: Arguments, kwargs: Options) -> bool:
    """Tell a file from a pipe: waiting for another process is no reading."""
    return stat.S_ISREG(os.fstat(args[0]).st_mode)


def note_descriptor(span: OutsideSpan, result: Any, args: Arguments, kwargs: Options) -> None:
    """Note the file of a descriptor; a folder that is being removed or a pipe is not written."""
    span.detail = file_name(args[0] if args else kwargs["path"])
    if not stat.S_ISREG(os.fstat(result).st_mode):
        span.kind = 0
