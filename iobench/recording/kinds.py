"""The closed list of what a span can be: the sort of work, without names of files or users.

The numbers are part of the span file format (``iobench.recording.span_file``): append, never
renumber. Free names go into a span's label.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

__all__ = ["CONSUMER_KINDS", "HANDOVER_KINDS", "LIFE_KINDS", "WORKER_KINDS", "Kind", "stage_name"]


class Kind(IntEnum):
    """The sort of work a span is."""

    # Work of a loading process or thread.
    OPEN = 1
    READ = 2
    DECODE = 3
    VERIFY = 4
    PREPROCESS = 5
    TRANSFORM = 6
    COLLATE = 7
    FUSED = 8
    OPAQUE = 9
    # The way of a batch from the worker to the training loop.
    SAMPLER = 20
    SUBMIT_QUEUE = 21
    SERIALISE = 22
    IPC_WAIT = 23
    HEAD_OF_LINE = 24
    PIN = 25
    H2D = 26
    UNPICKLE = 27
    HANDOVER = 28
    # The training loop.
    WAIT = 40
    FORWARD = 41
    BACKWARD = 42
    STEP = 43
    COMM = 44
    PEER_INPUT_WAIT = 45
    EVALUATE = 46
    CHECKPOINT = 47
    OTHER = 48
    # The life of the pipeline.
    STARTUP = 60
    STARVED_SUBMIT = 61
    WORKER_GAP = 62
    SHUTDOWN = 63
    UNKNOWN = 64

    @property
    def spelled(self) -> str:
        """The kind as JSON and reports spell it, e.g. ``"submit_queue"``."""
        return self.name.lower()


WORKER_KINDS: Final = frozenset(kind for kind in Kind if kind < 20)
HANDOVER_KINDS: Final = frozenset(kind for kind in Kind if 20 <= kind < 40)
CONSUMER_KINDS: Final = frozenset(kind for kind in Kind if 40 <= kind < 60)
LIFE_KINDS: Final = frozenset(kind for kind in Kind if kind >= 60)


def stage_name(kind: Kind, label: str = "") -> str:
    """Return how a stage is spelled everywhere: ``kind`` or ``kind:label``."""
    return f"{kind.spelled}:{label}" if label else kind.spelled
