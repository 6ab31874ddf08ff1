"""``package.module:callable`` and ``climetlab:NAME``: objects, made when they are needed."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import inspect
import json
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from iobench.datasets.locate import climetlab_cache_folder
from iobench.datasets.real_plugins import (
    climetlab_offline,
    fail_fast,
    import_climetlab,
    is_unknown_dataset,
)
from iobench.errors import IobenchError, MissingFileError, OptionError, UnknownNameError
from iobench.masking import mask_text, mask_values

TARGET: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
CLIMETLAB: Final = "climetlab:"
WHOLE: Final = re.compile(r"[+-]?(0|[1-9]\d*)")
DECIMAL: Final = re.compile(r"[+-]?(\d+\.\d*|\.\d+|\d+(?=[eE]))([eE][+-]?\d+)?")
WORDS: Final = {"true": True, "false": False, "none": None}
REASON_LIMIT: Final = 500


class HeldObject:
    """An object that was handed over in Python."""

    is_repeatable = False  # whether ``open`` makes another one each time

    def __init__(self, value: Any) -> None:
        kind = type(value)
        self._value = value
        self.name = kind.__name__
        self.facts: Mapping[str, Any] = {"object": f"{kind.__module__}.{kind.__qualname__}"}

    def open(self) -> Any:
        """Return the object."""
        return self._value


class NamedObject:
    """What ``package.module:callable`` returns; what is not callable is taken as it is.

    The folder in which it was named is importable, as with ``python -m``.
    """

    is_repeatable = True

    def __init__(self, target: str, options: Mapping[str, Any]) -> None:
        if not TARGET.fullmatch(target):
            raise OptionError(f"{target!r}: expected package.module:callable, e.g. mydata:train")
        self.name = target
        self.options = dict(options)
        self.facts: Mapping[str, Any] = {"object": target, "options": json_options(self.options)}
        self._folder = str(Path.cwd())

    def open(self) -> Any:
        """Import the module and call the callable."""
        target = self._find()
        if not callable(target):
            if self.options:
                raise OptionError(f"{self.name}: is not callable, so it takes no --option")
            return target
        arguments = self._arguments(target)
        with in_one_line(f"{self.name} was called and raised"):
            value = target(**arguments)
        if value is None:
            raise OptionError(
                f"{self.name}: returned None; let it return a dataset, an iterable, an "
                "xarray.Dataset or a DataLoader"
            )
        return value

    def _find(self) -> Any:
        module_name, _, path = self.name.partition(":")
        if self._folder not in sys.path:
            sys.path.insert(0, self._folder)
            importlib.invalidate_caches()
        target = self._import(module_name)
        self.facts = {
            "object": self.name,
            "options": json_options(self.options),
            "source": _fingerprint(getattr(target, "__file__", None)),
        }
        for attribute in path.split("."):
            if not hasattr(target, attribute):
                there = [name for name in vars(target) if not name.startswith("_")]
                raise OptionError(
                    f"{self.name}: {module_name} has no {attribute!r}; it has "
                    f"{', '.join(sorted(there)[:20]) or 'no public names'}"
                )
            target = getattr(target, attribute)
        return target

    def _import(self, name: str) -> Any:
        with in_one_line(f"{self.name}: importing {name} raised"):
            try:
                return importlib.import_module(name)
            except ModuleNotFoundError as error:
                if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                    raise  # something the module needs
                raise OptionError(
                    f"{self.name}: no module {error.name!r}, seen from {self._folder}; check the "
                    "spelling, change the folder or install it"
                ) from error

    def _arguments(self, factory: Callable[..., Any]) -> dict[str, Any]:
        """Return the options as the callable takes them."""
        try:
            signature = inspect.signature(factory)
        except ValueError:  # of some built-in ones nothing is known
            return {name: parse_value(value) for name, value in self.options.items()}
        texts = {
            name
            for name, parameter in signature.parameters.items()
            if parameter.annotation in (str, "str", "str | None")
        }
        arguments = {
            name: value if name in texts else parse_value(value)
            for name, value in self.options.items()
        }
        try:
            signature.bind(**arguments)
        except TypeError as error:
            raise OptionError(
                f"{self.name}{signature}: {error}; its arguments are given as --option NAME=VALUE"
            ) from error
        return arguments


class ClimetlabObject:
    """``climetlab.load_dataset(NAME, **arguments).to_xarray()``, with the network cut off.

    Files are those of ``CLIMETLAB_MIRROR`` and of CliMetLab's cache.
    """

    is_repeatable = True

    def __init__(self, dataset: str, options: Mapping[str, Any]) -> None:
        if not dataset:
            raise OptionError(f"{CLIMETLAB}: name a dataset, e.g. {CLIMETLAB}maelstrom-yr")
        self.name = f"{CLIMETLAB}{dataset}"
        self.dataset = dataset
        self.arguments = {name: parse_value(value) for name, value in options.items()}
        self.facts: Mapping[str, Any] = {
            "object": self.name,
            "options": json_options(self.arguments),
        }

    def open(self) -> Any:
        """Return the ``xarray.Dataset``."""
        import_climetlab(self.name)
        with (
            in_one_line(f"{self.name}: load_dataset or to_xarray raised"),
            climetlab_offline(self.name) as climetlab,
            fail_fast(self._refuse),
            dask_in_this_thread(),
        ):
            try:
                loaded = climetlab.load_dataset(self.dataset, **self.arguments)
            except NameError as error:
                if not is_unknown_dataset(error):
                    raise
                raise UnknownNameError(
                    f"{self.name}: {error}; install the plugin that brings it"
                ) from error
            for name in ("terms_of_use", "citation"):
                text = getattr(loaded, name, None)
                if isinstance(text, str) and text != "-":  # CliMetLab's way to say nothing
                    self.facts = {**self.facts, name: text}
            return loaded.to_xarray()

    def _refuse(self, url: str) -> None:
        raise MissingFileError(
            f"{self.name}: {url} is neither in $CLIMETLAB_MIRROR nor in CliMetLab's cache "
            f"{climetlab_cache_folder()}; --download fetches it"
        )


Opener = HeldObject | NamedObject | ClimetlabObject
"""What makes an object, or has it; it travels to the workers instead of it."""


def is_object_target(text: str) -> bool:
    """Return whether a target names an object; a file of that name comes first."""
    spelled = text.startswith(CLIMETLAB) or TARGET.fullmatch(text) is not None
    return spelled and not os.path.lexists(text)


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


def json_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options as facts of a dataset have them: as JSON can hold them, without secrets."""
    return mask_values(json.loads(json.dumps(dict(options), default=repr)))


@contextlib.contextmanager
def dask_in_this_thread() -> Iterator[None]:
    """Let dask, where there is one, compute in the thread that asks: workers are processes."""
    if importlib.util.find_spec("dask") is None:
        yield
        return
    import dask

    with dask.config.set(scheduler="synchronous"):
        yield


def _fingerprint(file: str | None) -> str:
    """Return a digest of the module's file: other code may make other samples."""
    if file is None or not Path(file).is_file():
        return ""
    return hashlib.blake2b(Path(file).read_bytes(), digest_size=16).hexdigest()
