"""The run directory: ``run.json`` and the span files, all that a profile is made from."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Final

from iobench.errors import ProfileError, StorageError
from iobench.recording import spool as spools
from iobench.recording.clocks import SYSTEM_CLOCK, Clock
from iobench.recording.hosts import host_name
from iobench.recording.recorder import Recorder

__all__ = ["RunDirectory"]

RUN_VERSION: Final = 1


class RunDirectory:
    """A directory that holds one run; made by ``create`` or ``open``. Picklable.

    Attributes
    ----------
    path : Path
        The directory, absolute.
    config : dict
        What ``run.json`` says; ``version`` and ``spool`` are kept by this class.
    """

    __slots__ = ("config", "path")

    def __init__(self, path: Path, config: dict[str, Any]) -> None:
        self.path = path
        self.config = config

    @classmethod
    def create(
        cls, path: Path, config: dict[str, Any], *, spool: Path | None = None
    ) -> RunDirectory:
        """Make the directory and its ``run.json``.

        Parameters
        ----------
        path : Path
            Must not hold a run yet.
        config : dict
            JSON values; goes into ``run.json``.
        spool : Path, optional
            Where span files lie until they are gathered; by default in the directory itself, or
            on node-local storage if that is on a network or parallel file system.

        Raises
        ------
        StorageError
            If it cannot be written, or holds a run already.
        """
        path = Path(path).absolute()
        if (path / "run.json").exists():
            raise StorageError(f"{path}: holds a run already; name another directory with --out")
        try:
            (path / "spans").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(
                f"{path}: cannot be made ({error.strerror or error}); "
                "name a writable directory with --out"
            ) from error
        chosen = spools.choose_spool(path, spool)
        run = cls(path, {**config, "version": RUN_VERSION})
        run.update(spool=None if chosen is None else {"path": str(chosen), "host": host_name()})
        return run

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        """Read the ``run.json`` of a run made before.

        Raises
        ------
        ProfileError
            If there is none, or one that this version cannot read.
        """
        path = Path(path).absolute()
        file = path / "run.json"
        try:
            config = json.loads(file.read_text("utf-8"))
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
        return cls(path, config)

    @property
    def spans_path(self) -> Path:
        """The directory the span files belong in."""
        return self.path / "spans"

    @property
    def spool(self) -> Path | None:
        """Where they lie until gathered; None if that is ``spans_path`` itself."""
        spool = self.config.get("spool")
        return Path(spool["path"]) if isinstance(spool, dict) and "path" in spool else None

    def update(self, **more: Any) -> None:
        """Add to ``run.json``, or replace what it says; it is whole at every instant.

        Raises
        ------
        StorageError
            If it cannot be written.
        """
        self.config = {**self.config, **more}
        text = json.dumps(self.config, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
        part = self.path / f".run.json.{os.getpid()}.part"
        try:
            with part.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            part.replace(self.path / "run.json")
        except OSError as error:
            part.unlink(missing_ok=True)
            raise StorageError(
                f"{self.path / 'run.json'}: cannot be written ({error.strerror or error}); "
                "make room, or name another directory with --out"
            ) from error

    def recorder(
        self, *, role: str, worker: int = -1, rank: int = 0, clock: Clock = SYSTEM_CLOCK
    ) -> Recorder:
        """Return a new recorder whose span file belongs to this run."""
        return Recorder(
            self.spans_path, role=role, worker=worker, rank=rank, clock=clock, spool=self.spool
        )

    def gather(self) -> int:
        """Bring span files from the spool; return how many, 0 where there is no spool here.

        At the end of an epoch, at exit, and when a report opens a run that died.

        Raises
        ------
        StorageError
            If one cannot be brought; none is lost by that.
        """
        spool = self.spool
        return 0 if spool is None else spools.gather(spool, self.spans_path)

    def span_files(self) -> list[Path]:
        """Return the span files that are home, by name."""
        return sorted(self.spans_path.glob("*.spans"))
