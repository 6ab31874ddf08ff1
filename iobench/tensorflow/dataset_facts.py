"""Facts of a ``tf.data.Dataset``: its operations, sizes, and whether it is marked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import tensorflow as tf

from iobench.tensorflow.operation_kinds import THREADED, operation_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from iobench.recording.facts import LoaderFacts
    from iobench.recording.kinds import Kind
    from iobench.recording.session import Recording
    from iobench.tensorflow.traced_work import FunctionNames

MARK: Final = "_iobench_mark"
DEPTH: Final = 100
LAMBDA: Final = "<lambda>"
UNREPLAYED: Final = (
    "tf.data pipelines are not replayed: record the script as changed too, and compare both runs"
)


class DatasetMark:
    """What `instrument` was told of a dataset."""

    def __init__(self, name: str, kinds: Mapping[str, Kind]) -> None:
        self.name = name
        self.kinds = dict(kinds)


def batch_nbytes(batch: Any) -> int:
    """Return the size of a batch; -1 where a part of it does not tell."""
    total = 0
    for leaf in tf.nest.flatten(batch, expand_composites=True):
        try:
            n_values = leaf.shape.num_elements()
        except (AttributeError, ValueError):
            return -1
        if n_values is None or not leaf.dtype.size:
            return -1
        total += n_values * leaf.dtype.size
    return total


def _chain_of(dataset: Any) -> Iterator[Any]:
    """Yield a dataset and those it is made from, each one's first input."""
    for _ in range(DEPTH):
        yield dataset
        inputs = dataset._inputs() if hasattr(dataset, "_inputs") else ()
        if not inputs:
            return
        dataset = inputs[0]


def functions_of(dataset: Any) -> FunctionNames:
    """Return the names of the user's functions in a dataset; nothing where it does not fit."""
    chain = [*_chain_of(dataset)]
    names = {}
    for number, each in enumerate(reversed(chain)):
        wrapper = getattr(each, "_map_func", None) or getattr(each, "_predicate", None)
        function: Any = getattr(wrapper, "_func", None)
        name = getattr(function, "__name__", "")
        if name == LAMBDA:  # a tf.function of one has the name, and the code elsewhere
            code = getattr(getattr(function, "python_function", function), "__code__", None)
            name = f"lambda:{code.co_firstlineno}" if code is not None else ""
        if name and isinstance(name, str):
            names[operation_name(type(each).__name__.strip("_")), number] = name
    return names


def mark_of(dataset: Any) -> DatasetMark | None:
    """Return what `instrument` was told of a dataset, or of one that it is made of."""
    marks = (getattr(each, MARK, None) for each in _chain_of(dataset))
    return next((mark for mark in marks if mark is not None), None)


def note_dataset(recording: Recording, dataset: Any, mark: DatasetMark | None) -> LoaderFacts:
    """Note a dataset as a loader of this process, by what it tells of itself."""
    chain = list(_chain_of(dataset))
    operations = [operation_name(type(each).__name__.strip("_")) for each in chain]
    shown = [
        operation
        for operation in reversed(operations)
        if operation not in ("Options", "Model", "Distribute")
    ]
    name = mark.name if mark is not None and mark.name else " > ".join(shown)
    kind = type(chain[0])
    return recording.add_loader(
        "tensorflow",
        f"{kind.__module__}.{kind.__qualname__}",
        name,
        threads=int(not THREADED.isdisjoint(shown)),
        prefetch=_prefetch(chain, operations),
        batch_size=_batch_size(chain),
        unreplayed=UNREPLAYED,
    )


def _prefetch(chain: list[Any], operations: list[str]) -> int:
    for each, operation in zip(chain, operations, strict=True):
        if operation == "Prefetch":
            size = tf.get_static_value(getattr(each, "_buffer_size", None))
            return int(size) if size is not None and size > 0 else 2  # as autotuning begins
    return 0


def _batch_size(chain: list[Any]) -> int | None:
    for each in chain:
        size = getattr(each, "_batch_size", None)
        if size is not None:
            known = tf.get_static_value(size)
            return None if known is None else int(known)
    return None
