"""Node-local storage for span files while a run directory lies on a shared file system."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from iobench.errors import ProfileError, StorageError
from iobench.recording.sums import segment_paths, sums_path
from iobench.recording.this_process import boot_id, host_name

if TYPE_CHECKING:
    from collections.abc import Mapping

# Writing small pages through a mapping to these costs round trips, or is not coherent at all.
SHARED_TYPES: Final = frozenset(
    {"9p", "acfs", "afs", "beegfs", "ceph", "cifs", "coda", "daos", "dvs", "gfs2", "glusterfs"}
    | {"gpfs", "lustre", "mmfs", "nfs", "nfs4", "ocfs2", "orangefs", "panfs", "pvfs2", "smb2"}
    | {"smb3", "smbfs", "vboxsf", "virtiofs", "wekafs"}
)
MOUNT_ESCAPE: Final = re.compile(r"\\([0-7]{3})")


def file_system_type(path: Path, mounts: str | None = None) -> str:
    """Return the type of the file system a path lies on, by ``/proc/self/mounts``."""
    if mounts is None:
        try:
            mounts = Path("/proc/self/mounts").read_text("utf-8", "surrogateescape")
        except OSError:
            return "unknown"
    parts = path.resolve().parts
    nearest, depth = "unknown", 0
    for line in mounts.splitlines():
        fields = line.split()
        if len(fields) < 3:
            continue
        point = Path(MOUNT_ESCAPE.sub(lambda code: chr(int(code[1], 8)), fields[1])).parts
        # A later mount on the same point hides the earlier one.
        if len(point) >= depth and parts[: len(point)] == point:
            nearest, depth = fields[2], len(point)
    return nearest


def is_shared(file_system: str) -> bool:
    """Return whether a type of file system is a network, parallel or user-space one."""
    return file_system in SHARED_TYPES or file_system.startswith(("fuse.", "nfs", "lustre"))


def choose_spool(run: Path, environment: Mapping[str, str] = os.environ) -> Path | None:
    """Make and return a directory for the span files of a run; None if the run's own will do."""
    if not is_shared(file_system_type(run)):
        return None
    for candidate in (environment.get("SLURM_TMPDIR"), "/dev/shm", tempfile.gettempdir()):
        if candidate and not is_shared(file_system_type(Path(candidate))):
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
    paths = sorted(spool.glob("*.spans"))
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


def has_ended(path: Path) -> bool:
    """Return whether nobody writes to a span file any more; False where that is not certain."""
    from iobench.recording.span_reader import read_head  # a process that only writes needs none

    try:
        head = read_head(path)
    except ProfileError:
        return False
    if head.end is not None:
        return True
    if head.host != host_name():
        return False
    if head.boot_id != boot_id():
        return bool(head.boot_id)
    try:
        os.kill(head.pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False
