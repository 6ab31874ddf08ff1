"""What tf.data tells of its own operations: the time each has worked so far, over all threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import tensorflow as tf

from iobench.recording.kinds import Kind
from iobench.tensorflow.operation_kinds import hands_on, kind_of, operation_name, runs_functions

if TYPE_CHECKING:
    from collections.abc import Mapping


class OperatorTime(msgspec.Struct, frozen=True):
    """The work of one operation of a pipeline since its iterator began."""

    operation: str  # as `operation_name` spells it
    kind: str  # of the work; ``"fused"`` where a function of the user's runs inside
    busy_ns: int  # summed over its threads; what other operations did for it is not in it
    elements: int  # how many it handed on
    nbytes: int  # of these; 0 where tf.data does not count them
    parallelism: int  # threads it may use; 1 where it uses its caller's
    # whether it works ahead on threads of its own, or when its caller asks, on the caller's
    own_threads: bool

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON-ready values."""
        return msgspec.structs.asdict(self)


def read_model_times(
    iterator: Any, kinds: Mapping[str, Kind] | None = None
) -> tuple[OperatorTime, ...]:
    """Return the operations of an iterator, from the training loop's end of the pipeline on.

    Empty where tf.data keeps no model of it (``autotune.enabled=False``). At the end of a
    dataset it has forgotten the operations that ended: ask before.
    """
    try:
        model = tf.data.experimental.get_model_proto(iterator)
    except (tf.errors.OpError, AttributeError):
        return ()
    found = []
    for number in sorted(model.nodes):
        part = model.nodes[number]
        operation = operation_name(part.name)
        if hands_on(operation):
            continue
        kind = kind_of(operation, kinds)
        if runs_functions(operation) and operation not in (kinds or {}):
            kind = Kind.FUSED
        asked = [each.value for each in part.parameters if each.name == "parallelism"]
        found.append(
            OperatorTime(
                operation=operation,
                kind=kind.spelled,
                busy_ns=int(part.processing_time),
                elements=int(part.num_elements),
                nbytes=int(part.bytes_produced),
                parallelism=max(1, int(asked[0])) if asked else 1,
                own_threads=_class_of(part).startswith("ASYNC"),
            )
        )
    return tuple(found)


def _class_of(part: Any) -> str:
    """Return what sort of operation a node of the model is, as tf.data calls it."""
    classes = part.DESCRIPTOR.fields_by_name["node_class"].enum_type.values_by_number
    return str(classes[part.node_class].name) if part.node_class in classes else ""
