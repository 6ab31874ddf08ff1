"""What a span can be: one table of the sorts of work, with all that iobench knows of each.

A new kind is a new row. The numbers are part of the span file format
(``iobench.recording.span_file``): append, never renumber.
"""

from __future__ import annotations

from enum import Enum, Flag, IntEnum
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray


OTHER: Final = "other"  # label of what is copied to a device and is not known to be of a batch
WHOLE: Final = "whole batch"
"""Label of the making of a batch, joining included, that is too short for spans of its stages."""


STARTUP: Final = "startup"  # label of the wait for ``iter(loader)`` itself, which brings no batch
SHUTDOWN: Final = "shutdown"  # label of the last wait, which found no batch
RECEIVED: Final = "received"
"""Label of the wait, in no sum by itself, for what another thread drew from a loader."""
FAILED: Final = "failed"  # label of a wait that ended with an exception
HANG_NS: Final = 5_000_000_000
"""A last wait of this length that brings no batch is worth a sentence."""
RETAINS: Final = "retains"
"""Label of a mark of kind ``other``: collections of the dataset grew in this worker."""
TRAINS: Final = "trains"  # label of a mark of kind ``other``: an optimiser took a step in this pass
BETWEEN: Final = "between"
"""Label of a mark of kind ``other``: its detail is the generator that asked for a pass, if any."""
ROUND: Final = "round"  # label of the span of kind ``other`` that a pass over a loader is
GRAPH: Final = "dask"
"""Label of the span, of kind preprocess, around all tasks of a graph on the thread that asked."""
TASK: Final = "dask task"
"""Detail of the span of a task, of kind preprocess, on the thread that did it."""


class Family(Enum):
    """Where in a pipeline a kind belongs; its value is the category of traces and of the page."""

    LOAD = "load"  # work of a loading process or thread
    HANDOVER = "hand-over"  # the way of a batch from whoever made it to the training loop
    WAIT = "wait"  # the training loop asks for a batch
    LOOP = "loop"  # what else the training loop does
    LIFE = "life"  # the life of the pipeline itself


class Trait(Flag):
    """What holds of some kinds."""

    NONE = 0
    READS = 1  # its time is storage's
    MIXED = 2  # several sorts of loading that nobody told apart, reading among them as a rule
    READS_LATE = 4  # may read what was put off until then: memory maps, lazy arrays
    TELLS_READ = 8  # its bytes are those that it read and hands on
    CARRIES_BYTES = 16  # bytes per second can be told of it
    COPIES = 32  # its bytes are those of the batch, on their way to the training loop
    WAITS = 64  # nobody works in it: no busy time but what was waited for
    QUEUES = 128  # A batch lies somewhere, beside what threads do
    USES_BATCH = 256  # work of a device that needs the batch
    TRAINS = 512  # the batch before it was one to train on
    NO_COMPUTE = 1024  # of the training loop, what does not count as compute


_READS = Trait.READS | Trait.CARRIES_BYTES
_TELLS = Trait.TELLS_READ | Trait.CARRIES_BYTES
_CARRIES = Trait.CARRIES_BYTES
_COPIES = Trait.CARRIES_BYTES | Trait.COPIES
_MIXED = Trait.MIXED | Trait.CARRIES_BYTES
_WAITS = Trait.WAITS
_QUEUES = Trait.WAITS | Trait.QUEUES
_USES = Trait.USES_BATCH
_TRAINS = Trait.USES_BATCH | Trait.TRAINS


class Kind(IntEnum):
    """The sort of work a span is."""

    family: Family
    traits: Trait
    light: str  # its colour on a light ground, as ``#rrggbb``
    dark: str
    title: str  # what reports call it, where that is not its name

    def __new__(
        cls,
        number: int,
        family: Family = Family.LOOP,
        traits: Trait = Trait.NONE,
        light: str = "",
        dark: str = "",
        title: str = "",
    ) -> Self:
        """Make the member of one row."""
        kind = int.__new__(cls, number)
        kind._value_ = number
        kind.family, kind.traits = family, traits
        kind.light, kind.dark, kind.title = light, dark or light, title
        return kind

    # fmt: off
    OPEN = 1, Family.LOAD, _READS, "#4f8fc4", "#6fb0e4"
    READ = 2, Family.LOAD, _READS | _TELLS, "#2b6cb0", "#5a9fe0"
    DECODE = 3, Family.LOAD, _CARRIES | Trait.READS_LATE, "#7a57b3", "#a58be0"
    VERIFY = 4, Family.LOAD, _CARRIES, "#8b8f99", "#a2a7b2"
    PREPROCESS = 5, Family.LOAD, _CARRIES, "#2a8a80", "#4db8ac"
    TRANSFORM = 6, Family.LOAD, _CARRIES, "#43996a", "#68bd8d"
    COLLATE = 7, Family.LOAD, _COPIES, "#ad8420", "#d3aa48"
    FUSED = 8, Family.LOAD, _MIXED | _TELLS, "#55789a", "#7b9fc2", "making samples"
    OPAQUE = 9, Family.LOAD, _MIXED, "#7f7568", "#a59a8b", "opaque loading"
    LOCK = 10, Family.LOAD, Trait.NONE, "#b08a5a", "#d0aa78", "library lock"

    SAMPLER = 20, Family.HANDOVER, Trait.NONE, "#9d7aa8"
    SUBMIT_QUEUE = 21, Family.HANDOVER, _QUEUES, "#a58bb0", "", "task queue"
    SERIALISE = 22, Family.HANDOVER, _COPIES, "#b0647f"
    IPC_WAIT = 23, Family.HANDOVER, _QUEUES, "#b98aa0", "", "result queue"
    HEAD_OF_LINE = 24, Family.HANDOVER, _QUEUES, "#c07a93", "", "in-order delivery"
    PIN = 25, Family.HANDOVER, _COPIES, "#98588f", "#c083b8", "pin memory"
    H2D = 26, Family.HANDOVER, _COPIES, "#844d94", "#b07ec0", "copies to device"
    UNPICKLE = 27, Family.HANDOVER, _CARRIES, "#b0648f"
    HANDOVER = 28, Family.HANDOVER, _QUEUES, "#a4528a", "#cd7cb3", "hand-over"
    COPY_QUEUE = 29, Family.HANDOVER, Trait.NONE, "#9a78a6", "#bd9cc8", "copy queue"

    WAIT = 40, Family.WAIT, _WAITS, "#cc4414", "#ff7646"
    FORWARD = 41, Family.LOOP, _USES, "#a9b7c3", "#5f7080"
    BACKWARD = 42, Family.LOOP, _TRAINS, "#8fa1b0", "#728596"
    STEP = 43, Family.LOOP, _TRAINS, "#9dadba", "#687a8a"
    COMM = 44, Family.LOOP, _USES | Trait.NO_COMPUTE, "#8a6f62", "#b09182", "communication"
    # Read only: nothing writes it.
    PEER_INPUT_WAIT = 45, Family.LOOP, Trait.NO_COMPUTE, "#a88a7c", "", "peer input wait"
    EVALUATE = 46, Family.LOOP, _USES | Trait.NO_COMPUTE, "#b3bfc9", "#55646f"
    CHECKPOINT = 47, Family.LOOP, Trait.NO_COMPUTE, "#7f8f76"
    OTHER = 48, Family.LOOP, Trait.NONE, "#a2a8af", "#7d858e"
    STAGE_IN = 49, Family.LOOP, _CARRIES | Trait.NO_COMPUTE, "#6f8fa3", "#8fb0c5", "staging"
    BLOCKED = 50, Family.LOOP, Trait.NO_COMPUTE, "#a3626f", "#c98592", "unrecorded waits"

    STARTUP = 60, Family.LIFE, _WAITS, "#7d8ba0", "", "worker start-up"
    STARVED_SUBMIT = 61, Family.LIFE, _WAITS, "#94a0b3", "", "late submission"
    WORKER_GAP = 62, Family.LIFE, _WAITS, "#b5bdc9", "#4c5662", "gaps between stages"
    SHUTDOWN = 63, Family.LIFE, _WAITS, "#c3cad4", "#454e59", "loader shutdown"
    UNKNOWN = 64, Family.LIFE, _WAITS, "#8d8678", "", "unrecorded causes"
    # With `Flag.IO` in span files, a look at the run queue; of its own in what is analysed.
    CPU_WAIT = 65, Family.LIFE, Trait.NONE, "#b5533c", "#d97b62", "a free CPU"
    # fmt: on

    @property
    def spelled(self) -> str:
        """The kind as JSON and reports spell it, e.g. ``"submit_queue"``."""
        return self.name.lower()


def kinds_that(traits: Trait) -> frozenset[Kind]:
    """Return the kinds of which one of these traits holds."""
    return frozenset(kind for kind in Kind if kind.traits & traits)


WORKER_KINDS, HANDOVER_KINDS, LOOP_KINDS, LIFE_KINDS = (
    frozenset(kind for kind in Kind if kind.family is family)
    for family in (Family.LOAD, Family.HANDOVER, Family.LOOP, Family.LIFE)
)
READING_KINDS: Final = kinds_that(Trait.READS)
MIXED_KINDS: Final = kinds_that(Trait.MIXED)
WAITING_KINDS: Final = kinds_that(Trait.WAITS)
QUEUED_KINDS: Final = kinds_that(Trait.QUEUES)


def is_one_of(column: NDArray[Any], kinds: Iterable[Kind]) -> NDArray[np.bool_]:
    """Tell which spans are of one of these kinds, by their ``kind`` column (of uint8)."""
    table = np.zeros(256, dtype=bool)
    table[[*kinds]] = True
    marks: NDArray[np.bool_] = table[column]
    return marks


def stage_name(kind: Kind, label: str = "") -> str:
    """Return how a stage is spelled everywhere: ``kind`` or ``kind:label``."""
    return f"{kind.spelled}:{label}" if label else kind.spelled


def stage_title(stage: str) -> str:
    """Return what a reader is shown for a stage as `stage_name` spells it: ``title (label)``."""
    kind, (name, _, label) = kind_named(stage), stage.partition(":")
    title = (kind and kind.title) or name
    return f"{title} ({label})" if label else title


_BY_NAME: Final = {kind.spelled: kind for kind in Kind}


def kind_named(stage: str) -> Kind | None:
    """Return the kind of a stage by its name; None if there is no such kind."""
    return _BY_NAME.get(stage.partition(":")[0])


def copies_batches(stage: str) -> bool:
    """Tell whether a stage copies batches to a device; a script's models and such go as `OTHER`."""
    kind, _, label = stage.partition(":")
    return kind == Kind.H2D.spelled and label != OTHER


def reads_storage(kind: Kind, label: str = "") -> bool:
    """Tell whether a stage reads: by its kind, or as the label of several sorts at once says."""
    if Trait.READS in kind.traits:
        return True
    return kind == Kind.FUSED and label.startswith("read")


def decodes_too(kind: Kind, label: str = "") -> bool:
    """Tell whether a stage that may read decodes as well, so that its time is not all reading."""
    return Trait.MIXED in kind.traits and (kind != Kind.FUSED or "decode" in label)


# One number for two columns of spans, the first one above bit 32: a stage, a lane, a batch.


def key_of(high: int, low: int) -> int:
    """Return the number of a pair."""
    return high << 32 | low


def halves(key: int) -> tuple[int, int]:
    """Return the pair of a number."""
    return key >> 32, key & 0xFFFFFFFF


def stage_keys(spans: NDArray[Any]) -> NDArray[np.int64]:
    """Return the number of each span's kind and label."""
    key: NDArray[np.int64] = spans["kind"].astype(np.int64) << 32 | spans["label"]
    return key


def lane_keys(spans: NDArray[Any]) -> NDArray[np.int64]:
    """Return the number of each span's process and thread."""
    key: NDArray[np.int64] = spans["process"].astype(np.int64) << 32 | spans["thread"]
    return key


def batch_keys(spans: NDArray[Any], of: str = "process") -> NDArray[np.int64]:
    """Return the number of each span's batch within its process, or another column's value."""
    key: NDArray[np.int64] = (spans[of].astype(np.int64) << 32) + spans["batch"] + 1
    return key


def stages_of(
    spans: NDArray[Any], strings: Sequence[str]
) -> tuple[list[tuple[Kind, str]], NDArray[np.int64]]:
    """Return kind and label of the stages of spans, and which is each one's."""
    keys, number = np.unique(stage_keys(spans), return_inverse=True)
    pairs = [(Kind(kind), strings[label]) for kind, label in map(halves, keys.tolist())]
    return pairs, number.reshape(-1).astype(np.int64)
