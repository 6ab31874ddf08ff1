"""The words of advice: what may be changed, what is known of it, and why not."""

from __future__ import annotations

from enum import Enum

__all__ = ["AdviceOutcome", "Evidence", "Lever", "Reason"]


class Lever(Enum):
    """What may be changed."""

    FORMAT = "format"
    """Samples finished beforehand, in a container that was measured or can be."""
    LOADER = "loader"
    """The fast loader: threads that fill batches ahead, without copies between processes."""
    WORKERS = "workers"
    PREFETCH = "prefetch"
    OUT_OF_ORDER = "out of order"
    """Batches are handed over as they are ready."""
    KEEP_WORKERS = "keep workers"
    """Workers that live on from one epoch to the next."""
    PIN = "pin"
    PAGE_CACHE = "page cache"
    """The files are read once before."""
    MEMORY = "memory"
    """Finished samples in a file system in memory."""
    OFFLINE = "offline"
    """Decoding and preprocessing moved out of the training."""
    CHUNKS = "chunks"
    """Chunks that hold what a sample needs and no more."""
    CODEC = "codec"
    """Fewer bytes from storage for more decoding, or the reverse."""


class Evidence(Enum):
    """What a predicted gain rests on."""

    MEASURED = "measured"
    """It was run, in turns with the baseline."""
    REPLAYED = "replayed"
    """The loader's own rule over stage times that were measured."""
    BOUND = "bound"
    """It cannot gain more; what it does gain has to be measured."""


class AdviceOutcome(Enum):
    """What comes of looking for advice."""

    NO_BATCH = "no batch"
    NOTHING_TO_GAIN = "nothing to gain"
    """The training loop hardly waits."""
    WITHHELD = "withheld"
    """The replay does not tell this run's own time."""
    OPAQUE = "opaque"
    """Nobody saw who made the batches."""
    NO_SINGLE_STAGE = "no single stage"
    """Only several stages together gain: no one of them is worth speeding up."""
    NOTHING_FOUND = "nothing found"
    """It waits, but nothing that is known to iobench is predicted to help."""
    ADVICE = "advice"


class Reason(Enum):
    """Why something that one might try is not proposed."""

    IN_USE = "in use"
    NO_ACCELERATOR = "no accelerator"
    NO_MORE_CPUS = "no more CPUs"
    CACHED_ALREADY = "cached already"
    TOO_LARGE = "too large"
    SIZE_UNKNOWN = "size unknown"
    GAINS_NOTHING = "gains nothing"
    WITHIN_NOISE = "within noise"
    OWN_ORDER = "own order"
    NOT_WAITED_FOR = "not waited for"
    NO_WORKERS = "no workers"
    READS_WHAT_IT_USES = "reads what it uses"
    CHUNKS_FIT = "chunks fit"
