"""Python objects as datasets: handed over, named (``package.module:callable``), of CliMetLab.

What an object can do says what it is: map-style, iterable, or xarray's.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import inspect
import json
import operator
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
from msgspec.structs import replace

from iobench.chunks.chunked_variable import ChunkedVariable
from iobench.chunks.packing import Packing
from iobench.chunks.source_file import SourceFile
from iobench.datasets.climetlab_files import PluginCall, silent_climetlab
from iobench.datasets.contract import STEPS, SampleIndex, SamplePasses
from iobench.datasets.file_variables import (
    Selection,
    check_sample_dims,
    choose_variables,
    sample_variable,
)
from iobench.datasets.positions import FileCoordinates, SampleRows
from iobench.errors import OptionError, SampleError, UnknownNameError, in_one_line
from iobench.masking import mask_values
from iobench.samples import SampleSpec, Variable

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.datasets.contract import PublishedStep
    from iobench.datasets.locate import Locator

TARGET: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
CLIMETLAB: Final = "climetlab:"

Made = tuple[Any, dict[str, Any]]  # an object, and the facts of it that a store keeps


class Opener(msgspec.Struct, frozen=True):
    """What makes an object, or has it; it travels to the workers instead of it."""

    name: str
    make: Callable[[], Made]
    is_repeatable: bool = True  # whether ``make`` makes another one each time


def _opener_of(target: Any, options: Mapping[str, Any]) -> Opener:
    """Return what makes the object that is meant; an object is handed over as it is."""
    if not isinstance(target, str):
        kind = type(target)
        if options:
            raise OptionError(
                f"options {', '.join(options)}: the {kind.__name__} is made already; give them to "
                "what makes it"
            )
        made = target, {"object": f"{kind.__module__}.{kind.__qualname__}"}
        return Opener(kind.__name__, partial(tuple, made), is_repeatable=False)
    if target.startswith(CLIMETLAB):
        return Opener(target, partial(_load_climetlab, target, _climetlab_call(target, options)))
    if not TARGET.fullmatch(target):
        raise OptionError(f"{target!r}: expected package.module:callable, e.g. mydata:train")
    return Opener(target, partial(_call, target, dict(options), str(Path.cwd())))


def is_object_target(text: str) -> bool:
    """Return whether a target names an object; a file of that name comes first."""
    spelled = text.startswith(CLIMETLAB) or TARGET.fullmatch(text) is not None
    return spelled and not os.path.lexists(text)


def _call(name: str, options: Mapping[str, Any], folder: str) -> Made:
    """Return what the callable returns; what is not callable is taken as it is."""
    module_name, _, path = name.partition(":")
    if folder not in sys.path:  # importable, as with ``python -m``
        sys.path.insert(0, folder)
        importlib.invalidate_caches()
    advice = f"mend it, check the spelling, or change the folder, which is {folder}"
    with in_one_line(f"{name}: importing {module_name} raised", advice=advice):
        value: Any = importlib.import_module(module_name)
    # Other code may make other samples.
    file = Path(getattr(value, "__file__", None) or "")
    source = hashlib.blake2b(file.read_bytes() if file.is_file() else b"", digest_size=16)
    facts = {"object": name, "options": _json_options(options), "source": source.hexdigest()}
    with in_one_line(f"{name}: taking {path} raised"):
        value = operator.attrgetter(path)(value)
    if not callable(value):
        if options:
            raise OptionError(f"{name}: is not callable, so it takes no --option")
        return value, facts
    arguments = _arguments(name, value, options)
    with in_one_line(f"{name} was called and raised"):
        return value(**arguments), facts


def _arguments(
    name: str, factory: Callable[..., Any], options: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the options as the callable takes them: as text where it says so."""
    values = _parsed(options)
    try:
        signature = inspect.signature(factory)
    except (ValueError, TypeError):  # of some built-in ones nothing is known
        return values
    for option, parameter in signature.parameters.items():
        if option in options and parameter.annotation in (str, "str", "str | None"):
            values[option] = options[option]
    try:
        signature.bind(**values)
    except TypeError as error:
        module = name.partition(":")[0]
        raise OptionError(
            f"{name}: {error}; arguments are given as --option NAME=VALUE; where they are no "
            f"numbers or texts, name a function without any that returns it: {module}:FUNCTION"
        ) from error
    return values


def _climetlab_call(target: str, options: Mapping[str, Any]) -> PluginCall:
    dataset = target.removeprefix(CLIMETLAB)
    if not dataset:
        raise OptionError(f"{CLIMETLAB}: name a dataset, e.g. {CLIMETLAB}maelstrom-yr")
    return PluginCall(dataset, _parsed(options))


def _load_climetlab(name: str, call: PluginCall) -> Made:
    """Return ``climetlab.load_dataset(NAME, **arguments).to_xarray()``, without the network."""
    with (
        in_one_line(f"{name}: load_dataset or to_xarray raised"),
        silent_climetlab(name) as climetlab,
        dask_in_this_thread(),
    ):
        try:
            loaded = climetlab.load_dataset(call.name, **call.arguments)
        except NameError as error:
            if not str(error).startswith("Cannot find dataset"):
                raise
            raise UnknownNameError(f"{name}: {error}; install the plugin that brings it") from error
        facts = {"object": name, "options": _json_options(call.arguments)}
        for key in ("terms_of_use", "citation"):
            text = getattr(loaded, key, None)
            if isinstance(text, str) and text != "-":  # CliMetLab's way to say nothing
                facts[key] = text
        return loaded.to_xarray(), facts


def parse_value(value: Any) -> Any:
    """Return what the text of an option says as JSON; other text, and what is none, as it is."""
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            return json.loads(value)
    return value


def _parsed(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: parse_value(value) for name, value in options.items()}


@contextlib.contextmanager
def dask_in_this_thread() -> Iterator[None]:
    """Let dask, where there is one, compute in the thread that asks: workers are processes."""
    if importlib.util.find_spec("dask") is None:
        yield
        return
    import dask

    with dask.config.set(scheduler="synchronous"):
        yield


def _json_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options as JSON can hold them, without secrets."""
    return mask_values(json.loads(json.dumps(dict(options), default=repr)))


# ---- datasets of them

NamedArrays = dict[str, "NDArray[Any]"]
NUMBER_KINDS: Final = "biufc"
NOTHING: Final = object()


class ObjectDataset:
    """A Python object as a dataset, which forked processes share; pickled it is made anew."""

    kind = ""
    title = ""
    fused: tuple[str, ...] = STEPS
    published: PublishedStep | None = None
    passes: SamplePasses | None = None  # of what is iterable only
    own_files: tuple[Path, ...] = ()
    facts: Mapping[str, Any] = {}

    def __init__(self, opener: Opener, value: Any) -> None:
        self.name = opener.name
        self._opener, self._value = opener, value
        self._skipped: dict[str, str] = {}  # what of the first sample is no number, and why

    def files(self, locator: Locator) -> list[Path]:
        """Return the object's files, as far as they are known."""
        return list(self.own_files)

    def samples(self, files: Sequence[Path], locator: Locator) -> SampleIndex:
        """Return the samples; the first is made, and says what they are."""
        index, first = self._samples()
        digest = hashlib.blake2b(digest_size=16)  # other code or other data make another one
        for name, array in first.items():
            digest.update(f"{name} {array.dtype.str} {array.shape} ".encode() + array.tobytes())
        facts = {
            "kind": self.kind,
            **self.facts,
            "skipped": self._skipped,
            "first_sample": digest.hexdigest(),
        }
        return replace(index, provenance=facts)

    def _samples(self) -> tuple[SampleIndex, NamedArrays]:
        """Return the samples, and the first one."""
        raise NotImplementedError

    def read(self, where: Any) -> Any:
        """Return what can be had by itself, up to the whole sample; see ``fused``."""
        raise NotImplementedError

    def decode(self, raw: Any, where: Any) -> Any:
        """Return the sample's arrays."""
        return raw

    def preprocess(self, arrays: Any, where: Any) -> Any:
        """Return the sample."""
        return arrays

    @property
    def _object(self) -> Any:
        if self._value is None:
            self._value = self._opener.make()[0]
        return self._value

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_value": None if self._opener.is_repeatable else self._value}


class IndexedObject(ObjectDataset):
    """A map-style dataset."""

    kind = "map-style dataset"
    title = "a map-style dataset, its steps cannot be separated"

    def __init__(self, opener: Opener, value: Any) -> None:
        super().__init__(opener, value)
        self._spec: SampleSpec | None = None

    def _samples(self) -> tuple[SampleIndex, NamedArrays]:
        value = self._object
        with in_one_line(f"{self.name}: len() raised"):
            length = len(value)
        if length < 1:
            raise OptionError(f"{self.name}: its length is {length}; give one that has samples")
        where = f"{self.name}[0]"
        with in_one_line(f"{where} raised"):
            first = named_arrays(value[0], where=where, skipped=self._skipped)
        self._spec = spec_of(first, where=where, skipped=self._skipped)
        return SampleIndex(self._spec, range(length)), first

    def read(self, where: int) -> NamedArrays:
        """Return the whole sample."""
        if self._spec is None:
            raise SampleError(f"{self.name}: call samples() before read()")
        place = f"{self.name}[{where}]"
        arrays = named_arrays(self._object[where], where=place)
        self._spec.check(arrays, where=place)
        return arrays


class IterableObject(ObjectDataset):
    """What is iterable only, pass after pass; one pass without end where it says no length."""

    kind = "iterable dataset"
    title = "an iterable dataset, its steps cannot be separated"

    def _samples(self) -> tuple[SampleIndex, NamedArrays]:
        """Return an index without samples, with the spec of the first one, and the first one."""
        where = f"the first sample of {self.name}"
        if hasattr(self._value, "__next__") and not self._opener.is_repeatable:
            raise OptionError(
                f"{self.name}: is an iterator, which can be gone through once; give what makes it"
            )
        with in_one_line(f"{where}: making it raised"):
            first = next(iter(self._value), NOTHING)
        if first is NOTHING:
            raise OptionError(f"{self.name}: is empty; give something that has samples")
        arrays = named_arrays(first, where=where, skipped=self._skipped)
        spec = spec_of(arrays, where=where, skipped=self._skipped)
        length = 0
        with contextlib.suppress(TypeError, NotImplementedError):
            length = len(self._value)
        self.passes = SamplePasses(spec, partial(self._items, bool(length)), length)
        return SampleIndex(spec, range(0)), arrays

    def read(self, where: Any) -> Any:
        """Refuse: there is no sample by number."""
        raise OptionError(
            f"{self.name}: is iterable only, profiled as it is (--format source); samples by "
            "number need __getitem__"
        )

    def _items(self, has_end: bool, epoch: int) -> Iterator[NamedArrays]:
        while True:
            value, number = self._value, -1
            if hasattr(value, "__next__"):  # which goes once
                value = self._opener.make()[0]
            if callable(set_epoch := getattr(value, "set_epoch", None)):
                set_epoch(epoch)
            for number, item in enumerate(value):
                yield named_arrays(item, where=f"sample {number} of {self.name}")
            if has_end:
                return
            if number < 0:
                raise SampleError(
                    f"{self.name}: pass {epoch} has no samples; it can be gone through {epoch} "
                    "times"
                )
            epoch += 1


class LabelledObject(ObjectDataset):
    """Samples of an ``xarray.Dataset``, which each process opens again where it is lazy."""

    kind = "xarray.Dataset"
    fused = ("read", "decode")

    def __init__(
        self, opener: Opener, value: Any, sample_dim: str | None, variables: tuple[str, ...]
    ) -> None:
        value = _as_dataset(value)
        super().__init__(opener, value)
        selection, source = Selection(sample_dim, variables), _as_file(value, opener.name)
        self._dims = check_sample_dims(sample_dim, source.dims, [source.path])
        names, self._skipped = choose_variables(source, selection, self._dims)
        self._spec = SampleSpec(
            tuple(sample_variable(source.variables[name], selection, self._dims) for name in names)
        )
        for dim in self._dims:
            if not value.sizes[dim]:
                raise OptionError(f"{opener.name}: its dimension {dim} is empty; choose another")
        self.title = f"an {self.kind}, one sample an index of {' and '.join(self._dims)}"
        paths = {each.encoding.get("source") for each in (value, *value.variables.values())}
        files = (Path(path) for path in paths if isinstance(path, str | os.PathLike))
        self.own_files = tuple(sorted(file for file in files if file.is_file()))
        self._pid = os.getpid()
        in_memory = all(getattr(value.variables[name], "_in_memory", 0) for name in names)
        self._shared = in_memory or not opener.is_repeatable

    def _samples(self) -> tuple[SampleIndex, NamedArrays]:
        value, dims = self._object, self._dims
        rows = SampleRows(dims, [_coordinate(value, dim) for dim in dims])
        where = [tuple(indexes) for _, *indexes in rows.where]
        index = SampleIndex(self._spec, where, **rows.index_fields())
        with in_one_line(f"{self.name}: loading {' 0, '.join(dims)} 0 raised"):
            first = self.read(where[0])
        if not self._shared:  # so that no forked process shares its files
            value.close()
            self._value = None
        return index, first

    def read(self, where: tuple[int, ...]) -> NamedArrays:
        """Return the sample's arrays, loaded; without coordinates."""
        variables, at = self._object.variables, dict(zip(self._dims, where, strict=True))
        sample = {}
        with dask_in_this_thread():
            for each in self._spec:
                part = variables[each.name].isel(at, missing_dims="ignore")
                sample[each.name] = np.asarray(part.load().values, np.dtype(each.dtype))
        place = ", ".join(f"{dim} {index}" for dim, index in at.items())
        self._spec.check(sample, where=f"{self.name} at {place}")
        return sample

    @property
    def _object(self) -> Any:
        """The dataset, opened by this process where it is lazy."""
        if self._value is None or not (self._shared or self._pid == os.getpid()):
            self._value = _as_dataset(self._opener.make()[0])
            self._pid = os.getpid()
        return self._value


def _as_dataset(value: Any) -> Any:
    """Return an ``xarray.DataArray`` as a dataset of one variable, a dataset as it is."""
    return value if hasattr(value, "data_vars") else value.to_dataset(name=value.name or "values")


def _as_file(value: Any, name: str) -> SourceFile:
    """Return a dataset as the source of its numbers."""
    coordinates = " ".join(map(str, value.coords))
    variables, skipped = {}, {}
    for key, each in value.variables.items():
        if each.dtype.kind not in NUMBER_KINDS:
            skipped[str(key)] = f"is no number: dtype {each.dtype}"
            continue
        attributes = {**each.encoding, **each.attrs}
        texts = {key: str(attributes.get(key, "")) for key in ("units", "coordinates", "bounds")}
        texts["coordinates"] += f" {coordinates}"
        packing = Packing(each.dtype.str, each.dtype.str)
        variables[str(key)] = ChunkedVariable(
            str(key), tuple(map(str, each.dims)), each.shape, packing, 0, texts, "xarray"
        )
    dims = {str(dim): length for dim, length in value.sizes.items()}
    return SourceFile(Path(name), dims, variables, skipped)


def _coordinate(value: Any, dim: str) -> FileCoordinates:
    """Return the coordinate of a dimension: times, seconds, numbers; counts without one."""
    labels, units = np.arange(value.sizes[dim]), None
    if dim in value.indexes:
        index = np.asarray(value.indexes[dim].values)
        if index.dtype.kind == "m":
            labels, units = (index - index[0]) / np.timedelta64(1, "s"), "seconds"
        elif index.dtype.kind in "iufM" or hasattr(index[0], "calendar"):  # or cftime's
            labels, units = index, str(value.variables[dim].attrs.get("units", ""))
    return FileCoordinates([labels], [units], [""])


def object_dataset(
    target: str | object,
    options: Mapping[str, Any] | None = None,
    *,
    sample_dim: str | None = None,
    variables: Sequence[str] | None = None,
) -> ObjectDataset:
    """Make a dataset of a Python object, by what that can do."""
    opener = _opener_of(target, options or {})
    value, facts = opener.make()
    dataset = _dataset_of(opener, value, sample_dim, tuple(variables or ()))
    dataset.facts = facts if sample_dim is None else {**facts, "sample_dim": sample_dim}
    return dataset


def _dataset_of(
    opener: Opener, value: Any, sample_dim: str | None, variables: tuple[str, ...]
) -> ObjectDataset:
    kind = type(value).__name__
    kinds = {f"{each.__module__.partition('.')[0]}.{each.__name__}" for each in type(value).__mro__}
    if not kinds.isdisjoint(("xarray.Dataset", "xarray.DataArray")):
        return LabelledObject(opener, value, sample_dim, variables)
    if sample_dim or variables:
        raise OptionError(
            f"--sample-dim and --variables need an xarray.Dataset; {opener.name} is of type {kind}"
        )
    is_loader = not kinds.isdisjoint(("iobench.RingLoader", "torch.DataLoader"))
    if is_loader or "_iobench_loader" in getattr(value, "__dict__", {}):
        raise OptionError(
            f"{opener.name}: is a loader of batches; name its store or dataset (--framework torch "
            "has torch's DataLoader), or measure the script with iobench run"
        )
    if not isinstance(value, str | bytes | Mapping):
        is_indexed = hasattr(value, "__getitem__") and hasattr(value, "__len__")
        if is_indexed and "torch.IterableDataset" not in kinds:
            return IndexedObject(opener, value)
        if hasattr(value, "__iter__"):
            return IterableObject(opener, value)
    raise OptionError(
        f"{opener.name}: is of type {kind}; expected a dataset with __len__ and __getitem__, one "
        "with __iter__, or an xarray.Dataset"
    )


# ---- what it hands out as a sample


def named_arrays(value: Any, *, where: str, skipped: dict[str, str] | None = None) -> NamedArrays:
    """Return the numbers in a sample as arrays with names; ``skipped`` is filled with what is none.

    Names are keys of mappings, fields of named tuples, numbers of items; levels are joined with
    ``/``. A list of numbers is one array, a sample that is a single one is called ``0``.
    """
    arrays: NamedArrays = {}
    left_out = {} if skipped is None else skipped
    left_out.clear()
    for path, leaf in _leaves(value, ()):
        name = "/".join(path) or "0"
        if name in arrays or name in left_out:
            raise SampleError(f"{where}: two of its entries are called {name!r}; rename one")
        array = _array(leaf, name, where)
        if array is None:
            left_out[name] = f"is no number: {type(leaf).__name__}"
        elif array.dtype.kind not in NUMBER_KINDS:
            left_out[name] = f"is no number: dtype {array.dtype}"
        else:
            arrays[name] = array.astype(array.dtype.newbyteorder("="), copy=False)
    return arrays


def spec_of(arrays: NamedArrays, *, where: str, skipped: Mapping[str, str]) -> SampleSpec:
    """Return what a sample is that has such arrays."""
    if not arrays:
        reasons = ", ".join(f"{name} {reason}" for name, reason in skipped.items())
        raise SampleError(
            f"{where}: has no numbers ({reasons or 'it is empty'}); let it hold arrays or tensors"
        )
    variables = []
    for name, array in arrays.items():
        dims = tuple(f"axis_{number}" for number in range(array.ndim))
        variables.append(Variable(name, array.shape, array.dtype.str, dims))
    return SampleSpec(tuple(variables))


def _leaves(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    is_numbers = (
        isinstance(value, list)
        and value
        and all(isinstance(each, bool | int | float | complex) for each in value)
    )
    if isinstance(value, Mapping):
        for key, entry in value.items():
            yield from _leaves(entry, (*path, str(key)))
    elif isinstance(value, tuple | list) and not is_numbers:
        names: Sequence[str] = getattr(value, "_fields", ()) or [str(n) for n in range(len(value))]
        for name, entry in zip(names, value, strict=True):
            yield from _leaves(entry, (*path, name))
    else:
        yield path, value


def _array(leaf: Any, name: str, where: str) -> NDArray[Any] | None:
    """Return a leaf as an array, None if it is nothing of the kind."""
    if isinstance(leaf, bool | int | float | complex | list):
        return np.asarray(leaf)
    if not hasattr(leaf, "__array__"):
        return None
    if np.ma.is_masked(leaf):  # what lies below the mask is no number of anybody's
        raise SampleError(
            f"{where}: {name!r} has masked values, expected numbers alone; fill them in the "
            "dataset: filled(numpy.nan)"
        )
    try:
        return np.asarray(leaf.detach().cpu() if hasattr(leaf, "detach") else leaf)
    except (TypeError, NotImplementedError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        raise SampleError(
            f"{where}: {name!r}, a {type(leaf).__name__}, cannot be had as a NumPy array "
            f"({reason}); convert it in the dataset"
        ) from error
