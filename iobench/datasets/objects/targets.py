"""Objects of Python: handed over, by name (``package.module:callable``), or of CliMetLab."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import inspect
import json
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from iobench.datasets.climetlab_files import Downloads, PluginCall, climetlab_offline
from iobench.errors import IobenchError, OptionError, UnknownNameError
from iobench.masking import mask_text, mask_values

TARGET: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
CLIMETLAB: Final = "climetlab:"
WHOLE: Final = re.compile(r"[+-]?(0|[1-9]\d*)")
DECIMAL: Final = re.compile(r"[+-]?(\d+\.\d*|\.\d+|\d+(?=[eE]))([eE][+-]?\d+)?")
WORDS: Final = {"true": True, "false": False, "none": None}
REASON_LIMIT: Final = 500

Made = tuple[Any, dict[str, Any]]
"""An object, and the facts of it that a store keeps."""


class Opener(msgspec.Struct, frozen=True):
    """What makes an object, or has it; it travels to the workers instead of it."""

    name: str
    make: Callable[[], Made]
    is_repeatable: bool = True  # whether ``make`` makes another one each time


def find_opener(target: Any, options: Mapping[str, Any]) -> Opener:
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


def climetlab_downloads(target: Any, options: Mapping[str, Any]) -> Downloads:
    """Return what to ask CliMetLab for; nobody knows which files that are."""
    if not isinstance(target, str) or not target.startswith(CLIMETLAB):
        name = target if isinstance(target, str) else type(target).__name__
        raise OptionError(f"--download: is for CliMetLab's datasets, not for {name}")
    return Downloads((_climetlab_call(target, options),))


def is_object_target(text: str) -> bool:
    """Return whether a target names an object; a file of that name comes first."""
    spelled = text.startswith(CLIMETLAB) or TARGET.fullmatch(text) is not None
    return spelled and not os.path.lexists(text)


def _call(name: str, options: Mapping[str, Any], folder: str) -> Made:
    """Return what the callable returns; what is not callable is taken as it is.

    The folder in which it was named is importable, as with ``python -m``.
    """
    module_name, _, path = name.partition(":")
    if folder not in sys.path:
        sys.path.insert(0, folder)
        importlib.invalidate_caches()
    with in_one_line(f"{name}: importing {module_name} raised"):
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
                raise  # something the module needs
            raise OptionError(
                f"{name}: no module {error.name!r}, seen from {folder}; check the spelling, change "
                "the folder or install it"
            ) from error
    # Other code may make other samples.
    file = Path(getattr(module, "__file__", None) or "")
    source = hashlib.blake2b(file.read_bytes() if file.is_file() else b"", digest_size=16)
    facts = {"object": name, "options": _json_options(options), "source": source.hexdigest()}
    value: Any = module
    for attribute in path.split("."):
        if not hasattr(value, attribute):
            there = [each for each in vars(value) if not each.startswith("_")]
            raise OptionError(
                f"{name}: {module_name} has no {attribute!r}; it has "
                f"{', '.join(sorted(there)[:20]) or 'no public names'}"
            )
        value = getattr(value, attribute)
    if not callable(value):
        if options:
            raise OptionError(f"{name}: is not callable, so it takes no --option")
        return value, facts
    arguments = _arguments(name, value, options)
    with in_one_line(f"{name} was called and raised"):
        value = value(**arguments)
    if value is None:
        raise OptionError(
            f"{name}: returned None; let it return a dataset, an iterable or an xarray.Dataset"
        )
    return value, facts


def _arguments(
    name: str, factory: Callable[..., Any], options: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the options as the callable takes them: as text where it says so."""
    values = {option: parse_value(value) for option, value in options.items()}
    try:
        signature = inspect.signature(factory)
    except ValueError:  # of some built-in ones nothing is known
        return values
    for option, parameter in signature.parameters.items():
        if option in options and parameter.annotation in (str, "str", "str | None"):
            values[option] = options[option]
    try:
        signature.bind(**values)
    except TypeError as error:
        raise OptionError(
            f"{name}{signature}: {error}; its arguments are given as --option NAME=VALUE"
        ) from error
    return values


def _climetlab_call(target: str, options: Mapping[str, Any]) -> PluginCall:
    dataset = target.removeprefix(CLIMETLAB)
    if not dataset:
        raise OptionError(f"{CLIMETLAB}: name a dataset, e.g. {CLIMETLAB}maelstrom-yr")
    arguments = {name: parse_value(value) for name, value in options.items()}
    return PluginCall(dataset, arguments, to_xarray=True)


def _load_climetlab(name: str, call: PluginCall) -> Made:
    """Return ``climetlab.load_dataset(NAME, **arguments).to_xarray()``, with the network cut off.

    Files are those of ``CLIMETLAB_MIRROR`` and of CliMetLab's cache.
    """
    with (
        in_one_line(f"{name}: load_dataset or to_xarray raised"),
        climetlab_offline(name) as climetlab,
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
    """Return what the text of an option stands for.

    ``true``, ``false`` and ``none`` in any case; whole numbers without leading zeros; decimal
    numbers; lists in brackets, ``[1, b]``; and text, which quotes keep as it is: ``"1"``. What is
    not text stays as it is.
    """
    if not isinstance(value, str):
        return value
    text = value.strip()
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1]
    if text.startswith("[") and text.endswith("]"):
        inside = text[1:-1].strip()
        return [parse_value(part) for part in inside.split(",")] if inside else []
    if text.lower() in WORDS:
        return WORDS[text.lower()]
    if WHOLE.fullmatch(text):
        return int(text)
    return float(text) if DECIMAL.fullmatch(text) else text


@contextlib.contextmanager
def in_one_line(what: str) -> Iterator[None]:
    """Make whatever the user's own code raises an error of one line, its traceback a note."""
    try:
        yield
    except IobenchError:
        raise
    except Exception as error:
        reason = str(error).partition("\n")[0][:REASON_LIMIT]
        clear = OptionError(f"{what} {type(error).__name__}: {reason}; mend it")
        clear.add_note(mask_text("".join(traceback.format_exception(error))))
        raise clear from error


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
