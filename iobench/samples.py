"""What one training sample is: named arrays with shapes, dtypes, dimensions and units.

A ``SampleSpec`` is a value: it is compared, written into manifests and checked against samples.
A ``Window`` makes one sample of several items that follow each other. Where samples come from
lives in ``iobench.datasets`` and ``iobench.stores``.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from iobench.errors import OptionError, SampleError

Role = Literal["input", "target"]
Sample = Mapping[str, NDArray[Any]]
MAX_PACKED_NBYTES = 4
"""Of a whole number that float64 holds."""


class Packed(msgspec.Struct, frozen=True, tag_field="kind", tag="scaled"):
    """How the whole numbers that a store holds of a variable become its values.

    A value is ``number * scale + offset``, computed in float64 (the attributes ``scale_factor``
    and ``add_offset`` of the CF conventions, section 8.1).
    """

    dtype: str = "<f4"  # of the values, with byte order
    scale: float = 1.0  # finite, as the offset, and not 0
    offset: float = 0.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.scale) and self.scale != 0 and math.isfinite(self.offset)):
            raise SampleError(f"no such packing: scale {self.scale}, offset {self.offset}")
        if np.dtype(self.dtype).kind != "f":
            raise SampleError(f"packed values of {self.dtype}, expected a floating-point dtype")
        msgspec.structs.force_setattr(self, "dtype", np.dtype(self.dtype).newbyteorder("<").str)

    def fits(self, dtype: np.dtype[Any]) -> bool:
        """Return whether numbers of this dtype may be packed so."""
        return dtype.kind in "iu" and dtype.itemsize <= MAX_PACKED_NBYTES


class Variable(msgspec.Struct, frozen=True):
    """One named array of a sample.

    Parameters
    ----------
    name : str
        Name of the array in the sample.
    shape : tuple of int
        Its shape without a batch dimension; ``()`` for a scalar.
    dtype : str
        NumPy dtype string with byte order, e.g. ``"<f4"``.
    dims : tuple of str
        One name per axis.
    units : str
        Physical units; ``"1"`` for dimensionless, ``""`` where unknown.
    role : {"input", "target"}
        Whether the model reads it or is trained towards it.
    channels : tuple of str
        Names along the axis ``"channel"``, or the first where none has that name, if it stacks
        several quantities; else empty.
    packed : Packed, optional
        Where a store holds other numbers than the values: how these come of them. ``dtype`` is
        that of the numbers.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    dims: tuple[str, ...]
    units: str = ""
    role: Role = "input"
    channels: tuple[str, ...] = ()
    packed: Packed | None = None

    def __post_init__(self) -> None:
        if not self.name:
            raise SampleError("a variable has no name; give each one, or leave it out")
        if len(self.dims) != len(self.shape):
            raise SampleError(
                f"variable {self.name!r}: {len(self.shape)} axes need {len(self.shape)} dimension "
                f"names, got {self.dims}"
            )
        axis = self.dims.index("channel") if "channel" in self.dims else 0
        if self.channels and (not self.shape or len(self.channels) != self.shape[axis]):
            raise SampleError(
                f"variable {self.name!r}: {len(self.channels)} channel names do not fit "
                f"shape {self.shape}"
            )
        dtype = np.dtype(self.dtype)
        if dtype.hasobject or dtype.kind not in "biufc":
            raise SampleError(f"variable {self.name!r}: dtype {self.dtype} is not a number")
        if self.packed is not None and not self.packed.fits(dtype):
            raise SampleError(
                f"variable {self.name!r}: packed numbers of {self.dtype}, expected whole numbers "
                f"of at most {MAX_PACKED_NBYTES} bytes"
            )
        # One spelling per dtype, so that equal specs compare equal.
        msgspec.structs.force_setattr(self, "dtype", dtype.newbyteorder("<").str)

    @property
    def nbytes(self) -> int:
        """Bytes of the array in one sample."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    def to_dict(self) -> dict[str, Any]:
        """Return the variable as JSON-ready values."""
        values: dict[str, Any] = msgspec.to_builtins(self)
        return values if self.packed else {k: v for k, v in values.items() if k != "packed"}

    @property
    def unpacked(self) -> Variable:
        """The variable as readers of a store get it."""
        return self if self.packed is None else replace(self, dtype=self.packed.dtype, packed=None)


@dataclass(frozen=True, slots=True)
class SampleSpec:
    """The arrays of one sample, in order: at least one, with distinct names."""

    variables: tuple[Variable, ...]
    _by_name: Mapping[str, Variable] = field(init=False, repr=False, compare=False)
    _expected: tuple[tuple[str, tuple[int, ...], np.dtype[Any]], ...] = field(
        init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        by_name = {variable.name: variable for variable in self.variables}
        if not by_name or len(by_name) != len(self.variables):
            names = [variable.name for variable in self.variables]
            raise SampleError(f"a sample needs variables with distinct names, got {names}")
        object.__setattr__(self, "_by_name", by_name)
        expected = tuple((v.name, v.shape, np.dtype(v.dtype)) for v in self.variables)
        object.__setattr__(self, "_expected", expected)

    def __getitem__(self, name: str) -> Variable:
        return self._by_name[name]

    def __iter__(self) -> Iterator[Variable]:
        return iter(self.variables)

    def __len__(self) -> int:
        return len(self.variables)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the arrays, in order."""
        return tuple(self._by_name)

    @property
    def nbytes(self) -> int:
        """Bytes of one sample."""
        return sum(variable.nbytes for variable in self.variables)

    @property
    def unpacked(self) -> SampleSpec:
        """The sample as readers of a store get it: nothing packed."""
        if all(variable.packed is None for variable in self.variables):
            return self
        return SampleSpec(tuple(variable.unpacked for variable in self.variables))

    def check(self, sample: Sample, *, where: str) -> None:
        """Raise SampleError, naming the first array whose name, shape or dtype differs.

        ``where`` says which sample it is.
        """
        if sample.keys() != self._by_name.keys():
            raise SampleError(
                f"{where}: expected arrays {sorted(self.names)}, got {sorted(sample)}"
            )
        for name, shape, dtype in self._expected:  # of 100,000 samples a second each is checked
            array = sample[name]
            if array.shape != shape or array.dtype != dtype:
                raise SampleError(
                    f"{where}: array {name!r} is {array.dtype.str} {array.shape}, "
                    f"expected {dtype.str} {shape}"
                )

    def to_dict(self) -> dict[str, Any]:
        """Return the spec as JSON-ready values."""
        return {"variables": [variable.to_dict() for variable in self.variables]}


class Window(msgspec.Struct, frozen=True):
    """Which items make one sample: offsets along the sample dimension, counted in items.

    ``Window((-1, 0), (1,))`` takes the item before and the item itself as inputs, and the next one
    as target. Where windows fit is `iobench.windows.place_windows`; what such a sample looks like
    is `iobench.loaders.pipeline.windowed_spec`.

    Parameters
    ----------
    inputs : tuple of int
        At least one, distinct, in the order they are stacked.
    targets : tuple of int
        Distinct, in the order they are stacked; may be empty. An offset may be an input and a
        target.
    dim : str, optional
        The dimension that offsets count along, where samples are along several: items of a window
        differ in it alone.
    """

    inputs: tuple[int, ...]
    targets: tuple[int, ...] = ()
    dim: str = ""

    def __post_init__(self) -> None:
        for name in ("inputs", "targets"):
            given = getattr(self, name)
            try:
                offsets = tuple(operator.index(offset) for offset in given)
            except TypeError:
                raise OptionError(
                    f"window: {name} {given!r}, expected whole numbers of items"
                ) from None
            if len(set(offsets)) != len(offsets):
                raise OptionError(f"window: {name} {offsets}, expected each offset once")
            msgspec.structs.force_setattr(self, name, offsets)
        if not self.inputs:
            raise OptionError("window: no inputs, expected at least one offset such as 0")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the window that ``--window`` spells: inputs, a colon, targets.

        Before them, where samples are along several dimensions, the one that is meant and ``=``.

        Examples
        --------
        >>> Window.parse("time=-1,0:1")
        Window(inputs=(-1, 0), targets=(1,), dim='time')
        """
        dim, is_named, offsets = text.rpartition("=")
        inputs, colon, targets = offsets.partition(":")
        try:
            if is_named and not dim.strip():
                raise ValueError
            return cls(_offsets(inputs), _offsets(targets) if colon else (), dim.strip())
        except ValueError as error:
            reason = f" ({error})" if isinstance(error, OptionError) else ""
            raise OptionError(
                f"--window={text}: expected offsets of inputs, a colon and offsets of targets, "
                f"as -1,0:1 or 0:1,2,3,4 or time=-1,0:1{reason}"
            ) from None

    @property
    def spelled(self) -> str:
        """The window as ``parse`` takes it."""
        inputs = f"{self.dim}=" * bool(self.dim) + ",".join(map(str, self.inputs))
        return f"{inputs}:{','.join(map(str, self.targets))}" if self.targets else inputs

    @property
    def offsets(self) -> tuple[int, ...]:
        """The offsets of all its items, ascending, each once."""
        return tuple(sorted({*self.inputs, *self.targets}))


def _offsets(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


class SharedBytes(msgspec.Struct, frozen=True):
    """What was read for a sample that shares decoded chunks with others; a subclass has those."""

    buffers: list[memoryview]  # nothing of chunks that were decoded already, or that others read

    def __iter__(self) -> Iterator[memoryview]:
        return iter(self.buffers)


def is_number_below(index: Any, count: int, name: str) -> bool:
    """Tell whether a sample may be asked for by a number; raise OptionError of what is none."""
    try:
        return bool(-count <= index < count)
    except (TypeError, ValueError):
        raise OptionError(
            f"{name}: asked for [{index!r}], expected the number of one sample; take several in a "
            "loop, or batches of iobench.loader"
        ) from None


def handed_on_nbytes(value: Any) -> int:
    """Return the bytes a step handed on: of its buffers or arrays; -1 where they cannot be told."""
    # What it mostly is comes first: asking what else it may be takes longer than all the rest.
    if type(value) is dict and set(map(type, value.values())) == {np.ndarray}:
        return sum([array.nbytes for array in value.values()])
    if isinstance(value, (np.ndarray, np.generic, memoryview)):
        return int(value.nbytes)
    if isinstance(value, (bytes, bytearray)):
        return len(value)
    if isinstance(value, SharedBytes):
        value = value.buffers
    elif isinstance(value, Mapping):
        value = list(value.values())
    if not isinstance(value, (list, tuple)):
        return -1  # nothing else is iterated: it may be lazy, or usable once
    sizes = [handed_on_nbytes(each) for each in value]
    return -1 if -1 in sizes else sum(sizes)
