"""The options of a loader: one frozen configuration, checked where it is made."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeVar

import numpy as np

from iobench.errors import OptionError
from iobench.loaders.ring.order import block_of
from iobench.loaders.ring.presenting import ROLES
from iobench.loaders.ring.sample_patches import PLACES
from iobench.samples import Window

if TYPE_CHECKING:
    from iobench.loaders.ring.presenting import Normalise, Transform

FRAMEWORKS: Final = ("numpy", "torch", "tensorflow")
MIN_DEPTH: Final = 3
_Function = TypeVar("_Function", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderConfig:
    """Options of `iobench.loader` and the loaders of frameworks.

    Parameters
    ----------
    framework : {"numpy", "torch", "tensorflow"}, optional
        Of the arrays in a batch. By default NumPy; torch where ``device`` is given.
    shuffle : bool or str
        Random order over all samples, another one each epoch, by ``seed``. ``"blocks:N"``, for cold
        or remote storage, keeps N neighbours together.
    seed : int
        What that order depends on.
    transform : callable, optional
        Given the batch as a dict of NumPy arrays, in a reader thread; what it returns is yielded:
        a dict, tuple or list of arrays. It may change the arrays in place.
    dtype : dtype or str, optional
        Of all floating-point arrays in a batch, after the transform. ``"bfloat16"`` with torch and
        TensorFlow only.
    device : torch.device or str, optional
        Where torch tensors shall be.
    drop_last : bool
        Leave out a last batch of fewer samples, and what does not go round among ranks.
    rank, world_size : int, optional
        Which training process of how many; rank ``r`` takes batches ``r``, ``r + world_size``, ...
        By default as ``torch.distributed`` says, else ``RANK`` and ``WORLD_SIZE``, else 0 of 1.
    threads : int, optional
        Reader threads; by default one a CPU, at most 4, and 4 for stores elsewhere. The batches do
        not depend on it.
    depth : int, optional
        Buffers; as many batches are kept ready, less those the loop holds. By default 4, with
        TensorFlow 6, which holds two more, and for stores elsewhere two more than threads.
    verify : bool
        Check each sample against the checksum its store holds.
    split : str, optional
        Samples of one of the store's splits; all by default.
    select : mapping, optional
        Samples by their coordinates: ``{"time": ("2020-01", "2020-06")}`` from the first to the
        last, both included, ``{"level": 500}`` for one value.
    window : str or Window, optional
        A sample is several items, as ``"-1,0:1"`` (see `iobench.samples.Window`). Windows never
        reach across a gap, or out of the split.
    patch : mapping of str to int, optional
        Samples are patches of so many places along each dimension, as ``{"y": 256, "x": 256}``,
        cut at one place of all variables and items of a window. Of Zarr and NumPy stores no more is
        read than a patch touches, where that is cheaper.
    patch_at : {"random", "tiles", "centre"}
        ``"random"``: one patch of each sample, at a place by seed, epoch and sample alone.
        ``"tiles"``, for validation: all that cover the sample; ``"centre"``: its middle.
        `RingLoader.coordinates` tells where each was.
    normalise : bool, sequence of str, or mapping of str to (mean, std)
        ``(values - mean) / std`` in float32 of all floating-point variables, or of those that are
        named, before the transform. By the store's statistics of the split ``"train"`` if there is
        one, else of all samples; by channel or level where it has these. Equal values are divided
        by 1. `RingLoader.normalisation` has what was taken, to undo it.
    stack : sequence of {"inputs", "targets"}, optional
        ``("inputs", "targets")``: a batch is ``(x, y)``, of each the variables of that role as
        channels, (samples, channels, y, x), behind the axis of steps where there is a window. The
        variables of a role need one dtype, and one grid behind their channels.
    processes : bool, optional
        Make batches, ``transform`` included, in as many processes as threads: for Python code that
        holds the interpreter's lock. The transform has to be importable, its arrays have the
        samples as their first axis, and the script's own work is under ``if __name__ ==
        "__main__":``.
    in_order : bool
        False: a batch is of the samples that are ready first, so that none waits for a slow one; a
        batch is filled by all threads. Each epoch has the same samples as in order.
        `RingLoader.coordinates` tells which each batch had, `RingLoader.state_dict` those that were
        passed over. Where samples take equally long this only costs a copy. The transform then runs
        in threads, with ``processes`` too.

    Raises
    ------
    OptionError
        If an option has a value that cannot be.
    """

    framework: Literal["numpy", "torch", "tensorflow"] | None = None
    shuffle: bool | str = False
    seed: int = 0
    transform: Transform | None = None
    dtype: Any = None
    device: Any = None
    drop_last: bool = False
    rank: int | None = None
    world_size: int | None = None
    threads: int | None = None
    depth: int | None = None
    verify: bool = False
    split: str | None = None
    select: Mapping[str, Any] | None = None
    window: str | Window | None = None
    patch: Mapping[str, int] | None = None
    patch_at: Literal["random", "tiles", "centre"] = "random"
    normalise: Normalise = False
    stack: Sequence[Literal["inputs", "targets"]] | None = None
    processes: bool | None = None
    in_order: bool = True

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """Return the configuration of these options by name."""
        known = sorted(field.name for field in fields(cls))
        if unknown := sorted({*options} - {*known}):
            raise OptionError(
                f"a loader has no option {unknown[0]!r}; there are {', '.join(known)}"
            )
        return cls(**options)

    def __post_init__(self) -> None:
        for name in ("seed", "rank", "world_size", "threads", "depth"):
            check_whole(name, getattr(self, name))
        window, stack, depth = self.window, self.stack, self.depth
        is_window = window is None or isinstance(window, (str, Window))
        is_stack = stack is None or (
            isinstance(stack, (list, tuple)) and stack and all(each in ROLES for each in stack)
        )
        is_function = self.transform is None or callable(self.transform)
        held = "3 or more; a loop holds two batches, the last one until the next is there"
        bounds = "values or (first, last) by coordinate"
        checks: dict[str, tuple[Any, str]] = {
            "framework": (self.framework in (None, *FRAMEWORKS), f"one of {', '.join(FRAMEWORKS)}"),
            "depth": (depth is None or depth >= MIN_DEPTH, held),
            "threads": (self.threads is None or self.threads >= 1, "1 or more"),
            "transform": (is_function, "a function of a dict"),
            "split": (isinstance(self.split, str | None), "the name of one split"),
            "select": (isinstance(self.select, Mapping | None), bounds),
            "window": (is_window, "offsets, as '-1,0:1', or a Window"),
            "patch_at": (self.patch_at in PLACES, f"one of {', '.join(PLACES)}"),
            "stack": (is_stack, "('inputs', 'targets'), or one of them"),
        }
        for name in ("drop_last", "verify", "processes"):
            checks[name] = getattr(self, name) in (None, False, True), "True or False"
        checks["in_order"] = self.in_order in (False, True), "True or False"
        for name, (is_right, expected) in checks.items():
            if not is_right:
                raise OptionError(f"{name}={getattr(self, name)!r}: expected {expected}")
        if self.device is not None and self.framework not in (None, "torch"):
            raise OptionError(f"device={self.device!r} goes with framework='torch'")
        if (self.rank is None) != (self.world_size is None):
            raise OptionError(f"rank={self.rank}, world_size={self.world_size}: give both, or none")
        if self.patch is None and self.patch_at != "random":
            raise OptionError(f"patch_at={self.patch_at!r} goes with patch")
        block_of(self.shuffle)

    @property
    def samples(self) -> dict[str, str]:
        """What samples are, in words that a state keeps."""
        window = self.window.spelled if isinstance(self.window, Window) else self.window
        facts: dict[str, Any] = {"split": self.split, "window": window}
        if self.select is not None:
            facts["select"] = dict(self.select)
        if self.patch is not None:
            sizes = ",".join(f"{dim}={size}" for dim, size in self.patch.items())
            facts["patch"] = f"{sizes} {self.patch_at}"
        return {name: str(value) for name, value in facts.items() if value is not None}


def check_whole(name: str, value: Any) -> None:
    """Raise OptionError for an option that is no whole number."""
    if value is not None and not isinstance(value, (int, np.integer)):
        raise OptionError(f"{name}={value!r}: expected a whole number")


def with_options(function: _Function) -> _Function:
    """Give a function that takes ``**options`` the signature that names them all."""
    own = inspect.signature(function)
    given = [p for p in own.parameters.values() if p.kind is not p.VAR_KEYWORD]
    options = [
        parameter
        for name, parameter in inspect.signature(LoaderConfig).parameters.items()
        if name not in own.parameters
    ]
    function.__signature__ = own.replace(parameters=[*given, *options])  # type: ignore[attr-defined]
    return function
