"""Which of several training processes this one is."""

from __future__ import annotations

import os
import sys

from iobench.errors import OptionError


def find_rank(rank: int | None = None, world_size: int | None = None) -> tuple[int, int]:
    """Return the rank of this process, and how many there are.

    What is given counts; else ``torch.distributed`` where the script has initialised it; else
    ``RANK`` and ``WORLD_SIZE`` of the environment, as ``torchrun`` sets them; else 0 of 1.
    """
    if rank is not None and world_size is not None:
        return rank, world_size
    if rank is not None or world_size is not None:
        raise OptionError(f"rank={rank}, world_size={world_size}: give both, or none")
    return _of_torch() or _of_environment() or (0, 1)


def _of_torch() -> tuple[int, int] | None:
    # Where nobody has imported it, it is not initialised: so nothing is imported here.
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed.get_rank(), distributed.get_world_size()


def _of_environment() -> tuple[int, int] | None:
    rank, world_size = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
    if world_size is None:
        return None
    try:
        return int(rank or ""), int(world_size)
    except ValueError:
        raise OptionError(
            f"the environment says RANK={rank} and WORLD_SIZE={world_size}, expected two whole "
            "numbers; set both, or pass rank= and world_size="
        ) from None
