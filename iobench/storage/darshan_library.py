"""PyDarshan's C layer as arrays: what of a log the library hands over, module by module.

``DarshanReport`` makes a dictionary of every segment and a frame of every file; here each part is
one array over the library's own memory, copied once. Layouts are asked of PyDarshan's own
declarations, so that a later version of it brings its own. Everything here may crash with a damaged
log, C being C: `iobench.storage.darshan_reader` runs it in a process of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from iobench.errors import FileFormatError, MissingExtraError
from iobench.frozen import frozen

if TYPE_CHECKING:
    from numpy.typing import NDArray

_CHUNK: Final = 4096
"""Files whose counters are held in full at a time."""


@frozen
class JobFacts:
    """What a log says of the job it is of; times in nanoseconds, 0 where the log has none."""

    job_id: int
    n_ranks: int
    start_ns: int
    end_ns: int
    has_nanoseconds: bool
    parent_pid: int
    executable: str


@frozen
class RawSegments:
    """The segments of one file in one rank, as the library gives them: the writes first."""

    file: int
    rank: int
    host: str
    n_writes: int
    n_segments: int
    content: bytes


class OpenLog:
    """One log, open in PyDarshan's library; a context manager.

    Attributes
    ----------
    reader_version : str
        Of PyDarshan.

    Raises
    ------
    FileFormatError
        If the library cannot open it.
    MissingExtraError
        If PyDarshan is not installed.
    """

    def __init__(self, path: str) -> None:
        try:
            import darshan
            from darshan.backend import cffi_backend
        except ImportError as error:
            raise MissingExtraError(
                f"Darshan logs are read by PyDarshan ({error}): pip install 'iobench[darshan]'"
            ) from None
        self._api: Any = cffi_backend
        self.reader_version = str(darshan.__version__)
        self._log: Any = cffi_backend.log_open(path)
        if not self._log["handle"]:
            raise FileFormatError("cannot be opened as a Darshan log")

    def __enter__(self) -> OpenLog:
        return self

    def __exit__(self, *_: object) -> None:
        self._api.log_close(self._log)

    def job(self) -> JobFacts:
        """Return what the log says of the job."""
        job = self._api.log_get_job(self._log)
        told = job["metadata"]
        try:
            executable = str(self._api.log_get_exe(self._log)).strip()
        except UnicodeDecodeError:
            executable = ""
        return JobFacts(
            job_id=int(job["jobid"]),
            n_ranks=int(job["nprocs"]),
            start_ns=int(job["start_time_sec"]) * 10**9 + int(job["start_time_nsec"]),
            end_ns=int(job["end_time_sec"]) * 10**9 + int(job["end_time_nsec"]),
            has_nanoseconds=_at_least(job["log_ver"], (3, 41)),
            parent_pid=int(told["fork_parent"]) if told.get("fork_parent", "").isdigit() else -1,
            executable=executable,
        )

    def modules(self) -> dict[str, dict[str, int]]:
        """Return the modules in the log: ``len``, ``ver``, ``idx``, ``partial_flag``."""
        return dict(self._api.log_get_modules(self._log))

    def names(self) -> dict[int, str]:
        """Return the names of files by the id that other parts of the log use."""
        ffi, library = self._api.ffi, self._api.libdutil
        held, count = ffi.new("struct darshan_name_record **"), ffi.new("int *")
        library.darshan_log_get_name_records(self._log["handle"], held, count)
        names = {}
        for at in range(count[0]):
            names[int(held[0][at].id)] = _name(ffi.string(held[0][at].name))
            library.darshan_free(held[0][at].name)
        library.darshan_free(held[0])
        return names

    def file_counters(self, module: str, struct: str) -> Iterator[NDArray[Any]]:
        """Yield the counters of a module's files, some thousands at a time.

        Fields are ``id``, ``rank`` and the names that the library gives to its counters.
        """
        size = self._api.ffi.sizeof(struct)
        layout = self._counter_layout(module, struct)
        held: list[bytes] = []
        for pointer in self._pointers(module):
            held.append(bytes(self._api.ffi.buffer(pointer, size)))
            if len(held) == _CHUNK:
                yield np.frombuffer(b"".join(held), layout)
                held = []
        if held:
            yield np.frombuffer(b"".join(held), layout)

    @property
    def segment_layout(self) -> np.dtype[Any]:
        """The dtype of a segment: ``offset``, ``length``, ``start_time``, ``end_time`` in s."""
        return _layout(self._api.ffi, self._api.ffi.typeof("struct segment_info"))

    def segments(self) -> Iterator[RawSegments]:
        """Yield the segments of each file and rank."""
        ffi = self._api.ffi
        head, each = ffi.sizeof("struct dxt_file_record"), ffi.sizeof("struct segment_info")
        for pointer in self._pointers("DXT_POSIX"):
            told = ffi.cast("struct dxt_file_record *", pointer)
            n_segments = told.write_count + told.read_count
            yield RawSegments(
                file=int(told.base_rec.id),
                rank=int(told.base_rec.rank),
                host=ffi.string(told.hostname).decode(errors="backslashreplace"),
                n_writes=int(told.write_count),
                n_segments=int(n_segments),
                content=bytes(ffi.buffer(ffi.cast("char *", pointer) + head, n_segments * each)),
            )

    def _pointers(self, module: str) -> Iterator[Any]:
        """Yield what the library reads of one module; it is freed when the next is asked for."""
        modules = self.modules()
        if module not in modules:
            return
        ffi, library = self._api.ffi, self._api.libdutil
        while True:
            held = ffi.new("void **")
            answer = library.darshan_log_get_record(
                self._log["handle"], modules[module]["idx"], held
            )
            if answer < 0:
                raise FileFormatError(f"its {module} part cannot be read")
            if answer == 0:
                return
            try:
                yield held[0]
            finally:
                library.darshan_free(held[0])

    def _counter_layout(self, module: str, struct: str) -> np.dtype[Any]:
        """Return the dtype of one file's counters, with the names the library gives them."""
        ffi = self._api.ffi
        fields = dict(ffi.typeof(struct).fields)
        names, formats, offsets = ["id", "rank"], ["<u8", "<i8"], [0, 8]
        for part, told, kind in (
            ("counters", self._api.counter_names(module), "<i8"),
            ("fcounters", self._api.fcounter_names(module), "<f8"),
        ):
            names += told
            formats += [kind] * len(told)
            offsets += [fields[part].offset + 8 * at for at in range(len(told))]
        return np.dtype(
            {
                "names": names,
                "formats": formats,
                "offsets": offsets,
                "itemsize": ffi.sizeof(struct),
            }
        )


def _name(raw: bytes) -> str:
    """Return a file's name; bytes that are no UTF-8 become what span files make of them."""
    return raw.decode(errors="surrogateescape").encode(errors="backslashreplace").decode()


def _layout(ffi: Any, struct: Any) -> np.dtype[Any]:
    """Return the dtype of a C struct of numbers of eight bytes."""
    names = [name for name, _ in struct.fields]
    formats = ["<f8" if field.type.cname == "double" else "<i8" for _, field in struct.fields]
    offsets = [field.offset for _, field in struct.fields]
    return np.dtype(
        {"names": names, "formats": formats, "offsets": offsets, "itemsize": ffi.sizeof(struct)}
    )


def _at_least(version: str, wanted: tuple[int, int]) -> bool:
    """Return whether a version of the log format is as new as wanted."""
    parts = version.split(".")
    return all(part.isdigit() for part in parts) and tuple(map(int, parts)) >= wanted
