"""Map-style datasets of the user's own: samples by number, ``dataset[i]``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from iobench.datasets.contract import SampleIndex
from iobench.datasets.objects.targets import in_one_line
from iobench.datasets.objects.values import NamedArrays, named_arrays, spec_of
from iobench.errors import OptionError, SampleError

if TYPE_CHECKING:
    from pathlib import Path

    from iobench.datasets.objects.targets import Opener
    from iobench.samples import Sample, SampleSpec

STEPS = ("read", "decode", "preprocess")


class IndexedObject:
    """A map-style dataset; in steps where it has methods ``read``, ``decode``, ``preprocess``.

    Processes that are forked share it, as torch's workers do; one that is pickled is made anew
    where it has a name.
    """

    kind = "map-style dataset"
    files: tuple[Path, ...] = ()

    def __init__(self, opener: Opener, value: Any) -> None:
        self._opener = opener
        self._value: Any = value
        self._in_steps = all(callable(getattr(value, step, None)) for step in STEPS)
        self.fused = () if self._in_steps else STEPS
        separable = "its own steps" if self._in_steps else "its steps cannot be separated"
        self.title = f"a {self.kind}, {separable}"
        self._spec: SampleSpec | None = None

    def samples(self) -> tuple[SampleIndex, NamedArrays]:
        """Return one sample for each number, and the first."""
        name, value = self._opener.name, self._value
        with in_one_line(f"{name}: len() raised"):
            length = len(value)
        if length < 1:
            raise OptionError(f"{name}: its length is {length}; give a dataset that has samples")
        where = f"{name}[0]"
        with in_one_line(f"{where} raised"):
            item = value[0] if not self._in_steps else None
            if self._in_steps:
                item = value.preprocess(value.decode(value.read(0)))
            first = named_arrays(item, where=where)
        self._spec = spec_of(first, where=where)
        if self._in_steps and hasattr(value, "__getitem__"):
            with in_one_line(f"{where} raised"):
                whole = named_arrays(value[0], where=where)
            self._spec.check(whole, where=f"{where}, beside read, decode and preprocess")
        return SampleIndex(self._spec, range(length)), first

    def read(self, where: int) -> Any:
        """Return what the dataset's ``read`` does, or the whole sample."""
        value = self._object
        return value.read(where) if self._in_steps else self._checked(value[where], where)

    def decode(self, raw: Any) -> Any:
        """Return what the dataset's ``decode`` does."""
        return self._object.decode(raw)

    def preprocess(self, arrays: Any, where: int) -> Sample:
        """Return the sample as the dataset's ``preprocess`` makes it."""
        return self._checked(self._object.preprocess(arrays), where)

    @property
    def _object(self) -> Any:
        if self._value is None:
            self._value = self._opener.open()
        return self._value

    def _checked(self, value: Any, number: int) -> Sample:
        if self._spec is None:
            raise SampleError(f"{self._opener.name}: call samples() before read()")
        where = f"{self._opener.name}[{number}]"
        arrays = named_arrays(value, where=where)
        self._spec.check(arrays, where=where)
        return arrays

    def __getstate__(self) -> dict[str, Any]:
        value = None if self._opener.is_repeatable else self._value
        return {**self.__dict__, "_value": value}
