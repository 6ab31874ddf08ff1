"""How commands are made of their tables: ``click`` parses, and values come as commands use them."""

from __future__ import annotations

import inspect
import re
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from iobench.command_options import OPTIONS, QUIET, CommandOption, split_formats
from iobench.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_ADDRESS: Final = re.compile(r"(?:[\w+.-]+::)*[A-Za-z][A-Za-z0-9+.-]+:/[^\\]")
"""pathlib leaves one slash of ``https://``."""
MOST: Final = 1_000_000
SETTINGS: Final = {"help_option_names": ["-h", "--help"], "show_default": True}
IS_QUIET: Final = "iobench.quiet"
SETTINGS_OF: Final = {
    # What follows the command's first word is the command's own, with or without the "--".
    "run": {"allow_interspersed_args": False},
    # What it does not know are options of the profile that it makes first.
    "advise": {"ignore_unknown_options": True},
}
REPEATED: Final = {"texts", "paths", "formats", "pairs"}


class CommandArgument(NamedTuple):
    """What a command is about: ``...`` in the metavar is several words."""

    field: str
    metavar: str
    help: str
    is_path: bool = False


class CommandText(NamedTuple):
    """What the help of a command says, above its options."""

    group: str
    help: str
    arguments: tuple[CommandArgument, ...] = ()


class _LocalPath(click.Path):
    """A path of this machine: a folder named like an address would be made, a password in it."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if _ADDRESS.match(str(value)):
            self.fail(f"{value} is an address; expected a path of this machine", param, ctx)
        return super().convert(value, param, ctx)


def make_command(name: str, text: CommandText) -> click.Command:
    """Return a command, whose module is imported when it runs."""
    params: list[click.Parameter] = [*map(_argument, text.arguments), *map(_option, OPTIONS[name])]
    words = [inspect.cleandoc(text.help), *(f"{a.metavar}: {a.help}" for a in text.arguments)]
    return click.Command(
        name,
        params=[*params, QUIET_OPTION],
        help="\n\n".join(words),
        callback=_function(name),
        context_settings={**SETTINGS, **SETTINGS_OF.get(name, {})},
    )


def _argument(described: CommandArgument) -> click.Argument:
    return click.Argument(
        [described.field],
        type=_LOCAL if described.is_path else _PLACE,
        metavar=described.metavar,
        nargs=-1 if "..." in described.metavar else 1,
        required=True,
    )


def _function(name: str) -> Callable[..., Any]:
    def run(**values: Any) -> Any:
        module = import_module(f"iobench.cli.{name}_command")
        return getattr(module, "list_" if name == "list" else name)(**values)

    return run


def _option(option: CommandOption) -> click.Option:
    name, kind = option.name, option.kind
    if kind == "schema":
        return click.Option(
            [name], is_flag=True, is_eager=True, expose_value=False, help=option.help,
            callback=_print_schema,
        )  # fmt: skip
    field = option.field or name.partition("/")[0].removeprefix("--").replace("-", "_")
    more: dict[str, Any] = {}
    if kind == "flag":
        more = {"is_flag": True, "default": bool(option.default)}
    elif option.default is not None:
        more = {"default": option.default}
    if option.metavar is not None:
        more["metavar"] = option.metavar
    return click.Option(
        [name, field],
        type=None if kind == "flag" else _TYPES.get(kind, str),
        multiple=kind in REPEATED,
        help=option.help,
        required=option.required,
        callback=partial(_converted, kind),
        **more,
    )


def _converted(kind: str, ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    """Return a value as commands take it."""
    name = param.opts[0]
    if kind == "names":
        return tuple(filter(None, map(str.strip, (value or "").split(","))))
    if kind == "pairs":
        return _pairs(name, value)
    if kind == "formats":
        return split_formats(value) if value else None
    if kind == "place" and value is not None:
        from iobench.files.urls import as_path

        return as_path(value)
    if kind == "size" and value is not None:
        from iobench.sizes import parse_nbytes

        return parse_nbytes(name, value)
    return value


def _pairs(option: str, pairs: Sequence[str]) -> dict[str, str]:
    options: dict[str, str] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise OptionError(f"{option} {pair}: expected NAME=VALUE")
        options[name] = text
    return options


def _print_schema(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from iobench.report.json_report import json_schema
        from iobench.report.renderers.json_text import json_text

        click.echo(json_text(json_schema()))
        ctx.exit()


def _be_quiet(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        ctx.meta[IS_QUIET] = True


_LOCAL: Final = _LocalPath(path_type=Path, readable=False)
_PLACE: Final = click.Path(readable=False)
"""A text that may name a file, which shells complete."""
_TYPES: Final[dict[str, Any]] = {
    "int": int,
    "count": click.IntRange(1, MOST),
    "float": float,
    "path": _LOCAL,
    "paths": _LOCAL,
    "place": _PLACE,
}
QUIET_OPTION: Final = click.Option(
    [QUIET.name], is_flag=True, help=QUIET.help, expose_value=False, callback=_be_quiet
)
"""Of every command, as ``--help`` is."""


def parsed(command: click.Command, words: Sequence[str]) -> dict[str, Any]:
    """Return the values that the function of a command would get."""
    with command.make_context(f"iobench {command.name}", list(words)) as context:
        return context.params
