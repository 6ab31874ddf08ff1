"""Where on this node copies go, where nobody says: chosen, with the reason."""

from __future__ import annotations

import os
from hashlib import sha256
from typing import TYPE_CHECKING, Final

from iobench.errors import StorageError
from iobench.files.atomic import storage_errors
from iobench.storage.near_places import local_places

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

REACHES: Final = {"local": "on this node", "memory": "in memory"}
UNKNOWN: Final = "of which it is not known what lies below"
MEMORY_SHARE: Final = 0.5
"""Of the free memory, a copy in memory takes no more: the rest is the training's."""


def choose_local_disk(
    source: str, nbytes: int, environ: Mapping[str, str] = os.environ
) -> tuple[Path, str]:
    """Return where to put a copy of so many bytes, and why; the folder is this user's alone.

    The first of `local_places` that is on no network and has the room.

    Raises
    ------
    StorageError
        If none is; the message says why not.
    """
    tried: list[str] = []
    for place in local_places(environ):
        folder, on = place.path, place.on
        mine = folder / f"iobench-staged-{os.getuid()}" / sha256(source.encode()).hexdigest()[:12]
        share = MEMORY_SHARE if on.reach == "memory" else 1.0
        why_not = place.why_not
        # What another process has begun takes no more room: all of a node choose the same.
        if not why_not and not mine.is_dir() and nbytes > share * place.free_nbytes:
            half = "half of " if on.reach == "memory" else ""
            why_not = f"{nbytes} bytes do not fit {half}the {place.free_nbytes} that are free"
        if not why_not:
            with storage_errors(mine):
                mine.parent.mkdir(mode=0o700, exist_ok=True)
                if not mine.parent.is_symlink() and mine.parent.stat().st_uid == os.getuid():
                    mine.mkdir(exist_ok=True)
                    told = f"{place.named} is {on.name}, {REACHES.get(on.reach, UNKNOWN)}"
                    return mine, "; ".join([told, *tried])
            why_not = f"{mine.parent.name} in it is another user's"
        tried.append(f"not {place.named} ({folder}): {why_not}")
    raise StorageError(f"no disk of this node takes a copy of {source}: {'; '.join(tried)}")
