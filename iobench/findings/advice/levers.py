"""What may be changed in a loading pipeline, and why something is not proposed: with the words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import ClassVar, Final

import msgspec

from iobench.json_keys import INLINE, figure
from iobench.report import units


class Lever(Enum):
    """What may be changed."""

    FORMAT = "format"
    """Samples finished beforehand, in a container that was measured or can be."""
    LOADER = "loader"
    """The fast loader: threads that fill batches ahead, without copies between processes."""
    WORKERS = "workers"
    PREFETCH = "prefetch"
    KEEP_WORKERS = "keep workers"
    """Workers that live on from one epoch to the next."""
    CACHE = "cache"
    """The files in the page cache, or copied once to storage of the node itself."""
    CHUNKS = "chunks"
    """Chunks that hold what a sample needs and no more."""
    CODEC = "codec"
    """Fewer bytes from storage for more decoding, or the reverse."""


TITLES: Final = {
    Lever.KEEP_WORKERS: "workers kept between epochs",
    Lever.CHUNKS: "chunks that hold one sample each",
}


class Candidate(msgspec.Struct, frozen=True):
    """Something to change.

    Parameters
    ----------
    levers : tuple of Lever
        What is changed.
    settings : mapping of str to str or int
        As the fields of a profile's configuration are called; more where only a script has it.
    """

    levers: tuple[Lever, ...]
    settings: Mapping[str, str | int] = msgspec.field(default_factory=dict)

    @figure
    def title(self) -> str:
        """What it is called, in a few words."""
        return " and ".join(self._titles())

    def _titles(self) -> Iterator[str]:
        settings = self.settings
        stored = settings.get("format")
        for lever in self.levers:
            match lever:
                case Lever.FORMAT if "store" in settings:
                    yield f"the store {settings['store']}"
                case Lever.FORMAT:
                    yield f"finished samples as {stored or 'a store'}"
                case Lever.LOADER:
                    yield self._loader_title()
                case Lever.WORKERS:
                    number = settings.get("workers", settings.get("num_workers"))
                    yield f"{number} worker{'s' * (number != 1)}"
                case Lever.PREFETCH:
                    ahead = settings.get("prefetch", settings.get("prefetch_factor"))
                    yield f"a prefetch of {ahead} batches"
                case Lever.KEEP_WORKERS if "made" in settings:
                    yield "one loader for all epochs, with its workers kept"
                case Lever.CACHE if "stage" in settings:
                    yield f"files staged to {settings['stage']}"
                case Lever.CACHE:
                    yield "files read into the page cache beforehand"
                case Lever.CODEC:
                    how = settings.get("codec") or settings.get("dtype")
                    yield f"stored as {how}" if how else "another codec"
                case _:
                    yield TITLES[lever]

    def _loader_title(self) -> str:
        framework = self.settings.get("framework")
        if framework == "native":
            return "the fast loader"
        if framework is not None:
            return f"{framework} as the loader"
        own = self.settings.get("pipeline") == "own"
        return "iobench's own reading" if own else "another pipeline"


class Reason(Enum):
    """Why something that one might try is not proposed."""

    IN_USE = "in use"
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
    NO_SOURCE = "no source"
    NEAR_ALREADY = "near already"
    NOWHERE_NEAR = "nowhere near"
    TOO_FEW_EPOCHS = "too few epochs"


class RuledOut(msgspec.Struct, frozen=True):
    """Something not proposed, and the figures that say why.

    Parameters
    ----------
    reason : Reason
        In a few words; ``sentence`` has it with its figures.
    needed, available : float or None
        What it takes and what there is, in bytes or CPUs; or a gain and its error.
    """

    candidate: Candidate
    reason: Reason
    needed: float | None = None
    available: float | None = None
    JSON_KEYS: ClassVar = {
        "candidate": INLINE,
    }

    @figure
    def sentence(self) -> str:
        """Why it is not proposed."""
        needed, available = self.needed, self.available
        match self.reason:
            case Reason.IN_USE:
                return "already in use."
            case Reason.NO_MORE_CPUS:
                cpus = None if available is None else int(available)
                return f"CPUs to use: {units.count(cpus)}; each already has a worker."
            case Reason.CACHED_ALREADY:
                return "this run already read everything from memory."
            case Reason.TOO_LARGE:
                space = units.nbytes(available)
                return f"needs {units.nbytes(needed)}; {space} is available."
            case Reason.SIZE_UNKNOWN:
                return "unknown: the run did not record the sizes that this needs."
            case Reason.GAINS_NOTHING:
                return _gain_sentence(needed or 0.0, available)
            case Reason.WITHIN_NOISE:
                return (
                    f"saved {units.fraction(needed)} when it was measured, but with this much "
                    "noise it may save nothing; measure more batches."
                )
            case Reason.OWN_ORDER:
                return "this source sets the order of its samples and runs its own workers."
            case Reason.NOT_WAITED_FOR:
                most = f": it could save {units.fraction(needed)} at most"
                return (
                    "the training loop does not wait for what this would "
                    f"remove{'' if needed is None else most}."
                )
            case Reason.NO_WORKERS:
                return "the training loop loads its own data, so nothing can prefetch."
            case Reason.READS_WHAT_IT_USES:
                read = None if needed is None or not available else needed / available
                return (
                    f"{units.ratio(read)} bytes are read for each byte used; how many are decoded "
                    "was not counted."
                )
            case Reason.NO_SOURCE:
                return (
                    "needs a conversion, but this run has only finished stores; name their source "
                    "as well, as in iobench profile SOURCE STORE --format zarr:codec=blosc-lz4."
                )
            case Reason.NEAR_ALREADY:
                return "the files are not on a shared file system."
            case Reason.NOWHERE_NEAR:
                return "none of $SLURM_TMPDIR, $TMPDIR and /dev/shm is local to this machine."
            case Reason.TOO_FEW_EPOCHS:
                epochs = None if available is None else int(available)
                return (
                    f"it pays for itself after about {units.epochs(needed or 0.0)} epochs, but "
                    f"there {'is' if epochs == 1 else 'are'} {units.count(epochs)}; pass --epochs "
                    "for a longer training."
                )
            case Reason.CHUNKS_FIT:
                return (
                    f"{units.ratio(needed)} bytes are read and {units.ratio(available)} decoded "
                    "for each byte used: the chunks fit the samples."
                )


def _gain_sentence(saved: float, error: float | None) -> str:
    if saved > 0:
        within = "" if error is None else f", which is within the error of {units.fraction(error)}"
        return f"predicted to save {units.fraction(saved)}{within}."
    longer = f", but to take {units.fraction(-saved)} longer" if saved else ""
    return f"predicted to save nothing{longer}."
