"""The run directory: ``run.json`` and the span files, all that a report is made from."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from iobench.errors import OptionError, ProfileError, StorageError
from iobench.json_files import read_json
from iobench.masking import mask_line, mask_values, printable
from iobench.recording.mounts import on_mount, read_mounts
from iobench.recording.recorder import Recorder
from iobench.recording.rotation import RUN_LOOP, Rotation, keep_nbytes
from iobench.recording.span_writer import StoppedRecording, read_stopped
from iobench.recording.sums import segment_paths, sums_path
from iobench.recording.this_process import host_name

if TYPE_CHECKING:
    from collections.abc import Mapping

RUN_VERSION: Final = 1
LONGEST_NAME: Final = 100


class RunDirectory:
    """A directory that holds one run; made by ``create`` or ``open``. Picklable."""

    __slots__ = ("config", "path")

    def __init__(self, path: Path, config: dict[str, Any]) -> None:
        self.path = path
        self.config = config

    @classmethod
    def create(
        cls, path: Path, config: dict[str, Any], *, token: str = "", numbered: bool = False
    ) -> RunDirectory:
        """Make the directory, or join the run there, where ``token`` is that of its job.

        ``numbered``: where it holds another run, all processes of the job take ``<path>-2``, ...
        """
        first = Path(path).absolute()
        config = {**config, "job": token} if token else config
        for number in itertools.count(1):
            each = first if number == 1 else first.with_name(f"{first.name}-{number}")
            run = cls._make(each, config)
            if run is not None:
                return run
            try:
                run = cls.open(each)
            except ProfileError:  # of another version, or damaged: somebody's all the same
                if token and not numbered:
                    raise
            else:
                if token and run.config.get("job") == token:
                    return run
            if not numbered:
                raise StorageError(
                    f"{each}: holds a run already; name another directory with --out"
                )
        raise AssertionError("unreachable")

    @classmethod
    def _make(cls, path: Path, config: dict[str, Any]) -> RunDirectory | None:
        """Make the directory and its ``run.json``; None where it has one, or just got one."""
        if (path / "run.json").exists():
            return None
        try:
            (path / "spans").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _cannot_make(path, error) from error
        spool = choose_spool(path)
        where = None if spool is None else {"path": str(spool), "host": host_name()}
        run = cls(path, {**config, "spool": where, "version": RUN_VERSION})
        if run._write_first():
            return run
        if spool is not None:
            spool.rmdir()
        return None

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        """Read a run made before; ProfileError if there is none that this version can read."""
        path = Path(path).absolute()
        file = path / "run.json"
        try:
            config = read_json(file, finite=True)
        except OSError as error:
            raise ProfileError(
                f"{file}: {error.strerror or error}; name the directory that "
                "'iobench profile --out' or 'iobench run --out' made"
            ) from error
        except ValueError as error:
            raise ProfileError(f"{file}: is not JSON ({error}); measure again") from error
        if not isinstance(config, dict) or config.get("version") != RUN_VERSION:
            raise ProfileError(
                f"{file}: is not a run of version {RUN_VERSION}; use the iobench that wrote it"
            )
        return cls(path, mask_values(config))  # written by whatever version, or by hand

    @property
    def spans_path(self) -> Path:
        """The directory the span files belong in."""
        return self.path / "spans"

    @property
    def processes_path(self) -> Path:
        """Where processes of a script write their facts (`ProcessFacts`), one file each."""
        return self.path / "processes"

    @property
    def spool(self) -> Path | None:
        """Where span files lie until gathered; None if that is ``spans_path`` itself."""
        spool = self.config.get("spool")
        return Path(spool["path"]) if isinstance(spool, dict) and "path" in spool else None

    def _write_first(self) -> bool:
        """Write ``run.json`` unless there is one; False where somebody else was first."""
        part = self.path / f".run.json.{host_name()}.{os.getpid()}.part"
        try:
            self._write(part)
            os.link(part, self.path / "run.json")
        except FileExistsError:
            return False
        except OSError as error:
            raise _cannot_write(self.path / "run.json", error) from error
        finally:
            part.unlink(missing_ok=True)
        return True

    def update(self, **more: Any) -> None:
        """Add to ``run.json``, which is whole at every instant; StorageError if it cannot."""
        self.config = {**self.config, **more}
        part = self.path / f".run.json.{os.getpid()}.part"
        try:
            self._write(part)
            part.replace(self.path / "run.json")
        except OSError as error:
            part.unlink(missing_ok=True)
            raise _cannot_write(self.path / "run.json", error) from error

    def _write(self, path: Path) -> None:
        text = json.dumps(mask_values(self.config), indent=1, sort_keys=True, ensure_ascii=False)
        # Bytes of a file's name that are no text become escapes, which JSON reads as they were.
        with path.open("w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text + "\n")
            file.flush()
            os.fsync(file.fileno())

    def recorder(self, *, role: str, **more: Any) -> Recorder:
        """Return a new recorder whose span file belongs to this run; ``more`` as of `Recorder`."""
        loop = os.environ.get(RUN_LOOP, "")
        if role != "consumer" and Path(loop).parent in (self.spans_path, self.spool):
            more.setdefault("rotation", Rotation(keep_nbytes(), Path(loop)))
        return Recorder(self.spans_path, role=role, spool=self.spool, **more)

    def gather(self) -> int:
        """Bring span files from the spool; return how many, 0 where there is no spool here."""
        spool = self.spool
        return 0 if spool is None else gather(spool, self.spans_path)

    def stopped(self) -> tuple[StoppedRecording, ...]:
        """Return the processes whose recording stopped, as on a full disk."""
        return read_stopped([self.spans_path, *([] if self.spool is None else [self.spool])])

    def span_files(self, *, live: bool = False) -> list[Path]:
        """Return the span files that were gathered, or those that are being written, by name."""
        spool = self.spool if live else None
        folder = spool if spool is not None and spool.is_dir() else self.spans_path
        return sorted(folder.glob("*.spans"))


def checked_name(name: str | None) -> str | None:
    """Return what its user calls a run, in one line without credentials; None of no name."""
    if name is None:
        return None
    line = mask_line(printable(" ".join(name.split())))
    if not any(map(str.isalnum, line)) or len(line) > LONGEST_NAME:
        raise OptionError(
            f"--name {line[:LONGEST_NAME]!r}: expected a name of 1 to {LONGEST_NAME} signs"
        )
    return line


def run_name(text: str) -> str:
    """Return what to call a run of something, in signs that every file system takes."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.") or "run"


def next_run_path(text: str) -> Path:
    """Make the next ``iobench-runs/<run_name>-N``; StorageError if it cannot be made."""
    name = run_name(text)
    for number in itertools.count(1):
        path = Path("iobench-runs") / f"{name}-{number}"
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise _cannot_make(path, error) from error
        return path
    raise AssertionError("unreachable")


def _cannot_make(path: Path, error: OSError) -> StorageError:
    return StorageError(
        f"{path}: cannot be made ({error.strerror or error}); name a writable directory with --out"
    )


def _cannot_write(path: Path, error: OSError) -> StorageError:
    return StorageError(
        f"{path}: cannot be written ({error.strerror or error}); "
        "make room, or name another directory with --out"
    )


def choose_spool(run: Path, environment: Mapping[str, str] = os.environ) -> Path | None:
    """Make and return a directory for the span files of a run; None if the run's own will do."""
    # Writing small pages through a mapping to these costs round trips, or is not coherent at all.
    mounts = read_mounts()
    if not on_mount(run, mounts).is_shared:
        return None
    for candidate in (environment.get("SLURM_TMPDIR"), "/dev/shm", tempfile.gettempdir()):
        if candidate and not on_mount(Path(candidate), mounts).is_shared:
            with contextlib.suppress(OSError):
                return Path(tempfile.mkdtemp(prefix=_prefix(run), dir=candidate)).resolve()
    return None


def _prefix(run: Path) -> str:
    """Return how the name of a run's spool begins: nobody else's does."""
    import hashlib  # with OpenSSL, which a report of it would load as well

    return f"iobench-{hashlib.blake2b(os.fsencode(run.resolve()), digest_size=6).hexdigest()}-"


def gather(spool: Path, directory: Path) -> int:
    """Bring the span files of a spool to the run; return how many, 0 on another host."""
    if not spool.is_dir():
        return 0
    paths = sorted(spool.glob("*.spans"))  # of living processes as well: no other machine has them
    is_own = spool.name.startswith(_prefix(directory.parent))
    for path in paths:
        try:
            directory.mkdir(parents=True, exist_ok=True)
            _bring_process(path, directory, remove=is_own)
        except OSError as error:
            raise StorageError(
                f"{path}: cannot be copied to {directory} ({error.strerror or error}); "
                "make room, then run 'iobench report' to fetch it"
            ) from error
    if is_own:
        with contextlib.suppress(OSError):
            spool.rmdir()
    return len(paths)


def _bring_process(path: Path, directory: Path, *, remove: bool) -> None:
    """Bring a span file with its segments, then its sums: these tell which segments have gone."""
    from iobench.recording.span_reader import has_ended  # a process that only writes needs none

    # Looked at before copying: a process that ends in between leaves its file for the next time.
    ended = remove and has_ended(path)
    segments = segment_paths(path)
    files = (*segments, path, sums_path(path))
    for each in files:
        with contextlib.suppress(*(() if each == path else (FileNotFoundError,))):
            _bring(each, directory / each.name)
    names = {each.name for each in segments}
    for each in segment_paths(directory / path.name):
        if each.name not in names:
            each.unlink()
    if ended:
        for each in (path, *files):
            each.unlink(missing_ok=True)


def _bring(source: Path, target: Path) -> None:
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        with source.open("rb") as file, part.open("wb") as copy:
            shutil.copyfileobj(file, copy, 1 << 20)
            copy.flush()
            os.fsync(copy.fileno())
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
