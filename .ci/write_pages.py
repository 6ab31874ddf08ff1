"""Writes iobench/docs/reference from the code; tests/test_rules_words.py holds the pages to it."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from iobench import errors
from iobench.cli.app import make_app
from iobench.report.json_report import json_schema
from iobench.suites.metrics import METRICS
from iobench.suites.recipe import KEYS, OPTIONS, SuiteRecipe

if TYPE_CHECKING:
    import click

WIDTH = 100
ROOT = Path(__file__).parents[1]
PAGES = ROOT / "iobench" / "docs" / "reference"

VARIABLES = {
    "IOBENCH_CHUNK_CACHE": "memory for decoded chunks, such as `2GiB`; `0` keeps none",
    "IOBENCH_ENERGY": "`off` reads no counters of energy",
    "IOBENCH_KEEP": "bytes of spans that stay of each rank, such as `256MB` (default 64 MB)",
    "IOBENCH_LIMITS": "what `--limits auto` means: `off`, or seconds of the storage probe",
    "IOBENCH_MONITOR": "`off` reads no CPUs, memory, disks and network of the machine",
    "IOBENCH_RUN": "run directory into which a script records without `iobench run`",
    "IOBENCH_RUN_DETAIL": "detail of such a recording: `auto`, `sample` or `batch`",
    "IOBENCH_RUN_DIGESTS": "`1` keeps a digest of every batch of such a recording",
    "IOBENCH_RUN_NAME": "name of a profile in reports, trackers and its directory",
    "IOBENCH_SEED": "seed of the order of samples in `iobench profile`",
    "IOBENCH_STORE_DIR": "folder for stores, stand-ins and indexes of every command",
}
INTERNAL = {
    "IOBENCH_DARSHAN_READY", "IOBENCH_RUN_ADAPTERS", "IOBENCH_RUN_FREE_DATA",
    "IOBENCH_RUN_KEEP_COMMAND", "IOBENCH_RUN_LOOP", "IOBENCH_RUN_RECORDS", "IOBENCH_RUN_TOKEN",
}  # fmt: skip
"""Variables by which iobench's processes inform each other."""
SHARE = "exposed_share"
CODES = {
    0: "done; `iobench check`: passed",
    2: "usage: an unknown option or a missing argument",
    3: "`iobench check`: regression",
    4: "`iobench check`: inconclusive",
}


def pages() -> dict[str, str]:
    """Return the text of each page by its path below the reference."""
    return {
        **{f"commands/{name}": text for name, text in _commands().items()},
        "environment.md": _environment(),
        "exit-codes.md": _exit_codes(),
        "recipes.md": _recipes(),
        "report-keys.md": _report_keys(),
    }


def _commands() -> dict[str, str]:
    commands = make_app().commands
    found = {
        f"{name}.md": f"# iobench {name}\n\n{_help(command, name)}"
        for name, command in commands.items()
    }
    rows = [
        (f"[iobench {name}]({name}.md)", command.get_short_help_str(200))
        for name, command in commands.items()
    ]
    intro = (
        "Every command has `--help` and `--quiet`; those that print a result have `--json`. "
        "Results go to stdout, notes, progress and the report of `iobench run` to stderr.\n\n"
        '`eval "$(_IOBENCH_COMPLETE=bash_source iobench)"` completes commands in bash; '
        "`zsh_source` and `fish_source` do it in zsh and fish."
    )
    found["index.md"] = _page("Commands", intro, _table(("command", "what it does"), rows))
    return found


def _help(command: click.Command, name: str) -> str:
    context = command.make_context(
        f"iobench {name}", [], resilient_parsing=True, terminal_width=WIDTH
    )
    return f"```text\n{command.get_help(context)}\n```\n"


def _environment() -> str:
    sources = (ROOT / package for package in ("iobench", "plugins", "converters"))
    texts = (path.read_text() for folder in sources for path in folder.rglob("*.py"))
    named = {name for text in texts for name in re.findall(r"\"(IOBENCH_[A-Z0-9_]+)\"", text)}
    if named != {*VARIABLES, *INTERNAL}:
        raise ValueError(f".ci/write_pages.py: variables differ: {named ^ {*VARIABLES, *INTERNAL}}")
    return _page(
        "Environment variables",
        _table(("variable", "effect"), [(f"`{name}`", text) for name, text in VARIABLES.items()]),
    )


def _exit_codes() -> str:
    every = [each for _, each in inspect.getmembers(errors, inspect.isclass)]
    ours = [each for each in every if issubclass(each, errors.IobenchError)]
    kinds = {code: [e for e in ours if e.exit_code == code] for code in {e.exit_code for e in ours}}
    texts = CODES | {
        1: "an error, said in one line",
        69: "a package or a device is missing",
        75: "interrupted, or a server does not answer: the same command continues",
    }
    rows = [
        (str(code), text, ", ".join(f"`{each.__name__}`" for each in kinds.get(code, ())))
        for code, text in sorted(texts.items())
    ]
    return _page(
        "Exit codes",
        "`iobench run` exits with the code of its command.",
        _table(("code", "meaning", "errors of Python"), rows),
    )


def _recipes() -> str:
    suite = _table(("key", "default"), [(f"`{key}`", _default(SuiteRecipe, key)) for key in KEYS])
    plain = [
        name for name in METRICS if not name.startswith(("stage_", "exposed_")) or name == SHARE
    ]
    kinds = ", ".join(f"`{name[6:-2]}`" for name in METRICS if name.startswith("stage_"))
    metrics = ", ".join(f"`{name}`" for name in plain)
    options = ", ".join(f"`{name}`" for name in OPTIONS)
    return _page(
        "Recipes of suites",
        "## `[suite]`",
        suite,
        f"`metrics` are of {metrics}; `stage_KIND_s` and `exposed_KIND_s`, time busy and exposed "
        f"of a batch, with a KIND of {kinds}; or `metric:NAME`, a figure of the script.",
        "## `[fixed]`, `[vary]` and `[[skip]]`",
        f"Keys are {options}. A key in `[vary]` has a list of values. A cell that matches all "
        "patterns of a `[[skip]]` is not measured. In `command`, `{KEY}` is replaced by the value "
        "of the cell.",
    )


def _default(struct: Any, key: str) -> str:
    (field,) = (each for each in msgspec.structs.fields(struct) if each.name == key)
    value = field.default
    text = ", ".join(value) if isinstance(value, tuple) else str(value)
    return f"`{text}`" if text else "the file's name"


def _report_keys() -> str:
    schema = json_schema()
    parts = [
        f"## {name}\n\n"
        + _table(
            ("key", "type"),
            [(f"`{key}`", _type(each)) for key, each in sorted(found["properties"].items())],
        )
        for name, found in sorted(schema["$defs"].items())
        if found.get("properties")
    ]
    intro = (
        "`iobench report RUN --json` prints a `Report`; `--json-schema` prints the schema that "
        "this page is made from. Names end in their unit: `_ns`, `_s`, `_nbytes`, `_fraction`."
    )
    return _page("Keys of `--json`", intro, *parts)


def _type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(_type(each) for each in schema["anyOf"])
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items') or {})}"
    if isinstance(schema.get("additionalProperties"), dict):
        return f"object of {_type(schema['additionalProperties'])}"
    if "enum" in schema:
        return ", ".join(f"`{each}`" for each in schema["enum"])
    return str(schema.get("type", "any"))


def _page(title: str, *parts: str) -> str:
    return "\n\n".join([f"# {title}", *parts]) + "\n"


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


if __name__ == "__main__":
    for name, text in pages().items():
        (PAGES / name).parent.mkdir(parents=True, exist_ok=True)
        (PAGES / name).write_text(text)
