"""Windows as samples: several items stacked into one.

In a ring (`iobench.loaders.ring.sample_source`) an item is read once a batch, however many windows
of the batch it is in. A pipeline, as torch's loader takes it, makes each sample by itself: an item
is read once for each window.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from msgspec.structs import replace

from iobench.errors import OptionError
from iobench.loaders.pipeline import Addresses, Pipeline, Step
from iobench.recording.kinds import Kind
from iobench.samples import SampleSpec

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from iobench.chunks.chunked_fields import SharedChunks
    from iobench.datasets.contract import PlannedDataset
    from iobench.samples import Role, Sample, Variable, Window

INPUT_DIM: Final = "step_in"
TARGET_DIM: Final = "step_out"
TARGET_SUFFIX: Final = "_target"


def windowed_pipeline(pipeline: Pipeline, items: ArrayLike, window: Window) -> Pipeline:
    """Return a pipeline over windows from one over items.

    Each step does for all items of a window, each item once, what it does for one; a last step,
    ``transform:window``, stacks them. So a stage of a window is what the same stage of its items
    is, and the copy that stacking costs is told apart.
    """
    spec = windowed_spec(pipeline.spec, window)
    table = np.asarray(items, dtype=np.int64).reshape(-1, len(window.offsets))
    if table.size and not 0 <= table.min() <= table.max() < len(pipeline):
        raise IndexError(f"items from {table.min()} to {table.max()} of {len(pipeline)}")
    steps = (Step(step.kind, step.label, _EachItem(step.run)) for step in pipeline.steps)
    stack = Step(Kind.TRANSFORM, "window", _Stack(pipeline.spec, spec, window))
    planned = None if pipeline.dataset is None else _PlannedItems(pipeline.dataset)
    where = Addresses(_WindowItems(pipeline.where, table), range(len(table)))
    return Pipeline(spec, where, (*steps, stack), planned)


@dataclass(frozen=True, slots=True)
class _PlannedItems:
    """A dataset that is told of the items of windows."""

    dataset: PlannedDataset

    @property
    def has_chunks(self) -> bool:
        """Whether there are any."""
        return self.dataset.has_chunks

    def expect(self, where: Sequence[Any], *, follows: bool) -> None:
        """Say which windows will be asked for, in order."""
        self.dataset.expect([item for window in where for item in window], follows=follows)

    def chunking(self) -> SharedChunks | None:
        """Return how the items are cut into chunks."""
        return self.dataset.chunking()


@dataclass(frozen=True, slots=True)
class _EachItem:
    """A step of an item, done for each item of a window."""

    run: Callable[..., Any]

    def __call__(self, *given: Sequence[Any]) -> list[Any]:
        return [self.run(*each) for each in zip(*given, strict=True)]


@dataclass(frozen=True, slots=True)
class _WindowItems:
    """Returns where the items of a window are; made when asked for, for windows overlap."""

    where: Sequence[Any]
    table: NDArray[np.int64]

    def __call__(self, window: int) -> tuple[Any, ...]:
        return tuple(self.where[item] for item in self.table[window].tolist())


class _Stack:
    """Stacks the items of a window, in the order of ``window.offsets``, to the window's arrays."""

    def __init__(self, item_spec: SampleSpec, spec: SampleSpec, window: Window) -> None:
        self._item_spec = item_spec
        self._offsets = window.offsets
        self._plan = [
            (spec[name], source, places) for name, source, places in stacking(item_spec, window)
        ]

    def __call__(self, items: Sequence[Sample], where: Any) -> dict[str, NDArray[Any]]:
        for offset, item in zip(self._offsets, items, strict=True):
            self._item_spec.check(item, where=f"the item at offset {offset} of a window")
        arrays: dict[str, NDArray[Any]] = {}
        for variable, source, places in self._plan:
            stacked = np.empty(variable.shape, variable.dtype)
            for row, place in enumerate(places):
                stacked[row] = items[place][source]
            arrays[variable.name] = stacked
        return arrays


def stacking(spec: SampleSpec, window: Window) -> list[tuple[str, str, list[int]]]:
    """Return how the arrays of a window are stacked of those of its items.

    Of each array: its name, the name of the items' variable, and which items, in which order, as
    places in ``window.offsets``.
    """
    offsets = window.offsets
    return [
        (part.name, part.variable.name, [offsets.index(offset) for offset in part.offsets])
        for part in _parts(spec, window)
    ]


def windowed_spec(spec: SampleSpec, window: Window) -> SampleSpec:
    """Return what a window of samples is.

    A variable of role input gets a first dimension `INPUT_DIM`, as long as ``window.inputs``; one
    of role target gets `TARGET_DIM`, as long as ``window.targets``. Where no variable is a target,
    as in users' own files, a model is trained to continue what it reads: each variable is an
    input under its own name, and a target under its name with `TARGET_SUFFIX`. Without target
    offsets there are no targets.
    """
    if all(variable.role == "target" for variable in spec):
        raise OptionError(f"--window: none of {', '.join(spec.names)} is an input of the model")
    names = [part.name for part in _parts(spec, window)]
    if twice := [name for name in names if names.count(name) > 1]:
        raise OptionError(
            f"--window: a variable is called {twice[0]}, as the targets of another one would be; "
            "leave one of them out, as with --variables"
        )
    return SampleSpec(tuple(_stacked(part) for part in _parts(spec, window)))


@dataclass(frozen=True, slots=True)
class _Part:
    """One array of a window: which variable of the items, at which offsets."""

    name: str
    variable: Variable
    role: Role
    offsets: tuple[int, ...]


def _parts(spec: SampleSpec, window: Window) -> list[_Part]:
    """Return the arrays of a window, in order: as in the item, then targets of their own names."""
    parts = [
        _Part(v.name, v, v.role, window.inputs if v.role == "input" else window.targets)
        for v in spec
    ]
    if all(variable.role == "input" for variable in spec):
        parts += [_Part(v.name + TARGET_SUFFIX, v, "target", window.targets) for v in spec]
    return [part for part in parts if part.offsets]


def _stacked(part: _Part) -> Variable:
    variable = part.variable
    dims = variable.dims
    if variable.channels and "channel" not in dims:
        dims = ("channel", *dims[1:])  # the names are along this axis, no longer the first
    return replace(
        variable,
        name=part.name,
        role=part.role,
        shape=(len(part.offsets), *variable.shape),
        dims=(INPUT_DIM if part.role == "input" else TARGET_DIM, *dims),
    )
