"""How every command takes its words: options with one value once, and plain ones as they are."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from iobench.command_options import OF_PROFILE
from iobench.frozen import frozen

_ADDRESS: Final = re.compile(r"(?:[\w+.-]+::)*[A-Za-z][A-Za-z0-9+.-]+:/[^\\]")
"""pathlib leaves one slash of ``https://``."""


@frozen
class _Plainly:
    """What typer makes of a value, without its help for what is plain already: that loads pydantic.

    Which takes 0.1 s. Typers that have no such methods are left alone.
    """

    typers: Callable[[], Any]

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return it converted to what the command takes."""
        kind = param.type_descriptor.annotation
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        if type(value) is kind and kind in (str, int, float):
            return value
        if kind is Path and isinstance(value, str) and os.access(value, os.R_OK):
            return Path(value)
        return self.typers().coerce(value, param=param, ctx=ctx)


def _plainly(params: Iterable[Any]) -> None:
    for each in params:
        if hasattr(each, "get_runtime_param") and hasattr(each, "type_descriptor"):
            each.get_runtime_param = partial(_Plainly, each.get_runtime_param)


class _IobenchGroup(TyperGroup):
    """The commands together."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse what comes before the command's name."""
        _plainly(self.get_params(ctx))
        return super().parse_args(ctx, args)


class IobenchCommand(TyperCommand):
    """A command that refuses a second value where only the last one would count.

    And an address where a path is expected: folders of that name would be made, a password in it.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse, after each option was looked for a second time.

        Raises
        ------
        UsageError
            If one that takes one value was given twice. A plain flag may be: it says the same.
            If an address was given for a path of this machine.
        """
        _plainly(self.get_params(ctx))
        *_, order = self.make_parser(ctx).parse_args(args=list(args))
        given = Counter(each for each in order if each.param_type_name == "option")
        for option, times in given.items():
            is_plain_flag = getattr(option, "is_flag", False) and not option.secondary_opts
            if times > 1 and not (getattr(option, "multiple", False) or is_plain_flag):
                ctx.fail(
                    f"{option.opts[0]} is given {times} times; it takes one value: give it once"
                )
        left = super().parse_args(ctx, args)
        for each in self.params:
            named = getattr(getattr(each, "type", None), "name", "")  # typer on click leaves texts
            values = ctx.params.get(each.name or "")
            for value in values if isinstance(values, list | tuple) else [values]:
                is_path = isinstance(value, Path) or (named == "path" and isinstance(value, str))
                if is_path and _ADDRESS.match(str(value)):
                    ctx.fail(f"{value} is an address; expected a path of this machine")
        return left


def make_typer(**options: Any) -> typer.Typer:
    """Return an application without commands; ``options`` as of ``typer.Typer``."""
    return typer.Typer(
        cls=_IobenchGroup,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        **options,
    )


def declared(name: str) -> Any:
    """Return an option of the table that advice reads as well, for the command that has it."""
    option = OF_PROFILE[name]
    return typer.Option(option.name, help=option.help, metavar=option.metavar)
