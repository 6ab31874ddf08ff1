"""The page that explains the keys of JSON, made from the docstrings of the figures' dataclasses."""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
import inspect
import re
import sys
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any, Final

from iobench.analysis.job_figures import JobTime
from iobench.frozen import frozen
from iobench.json_keys import ITSELF, figure
from iobench.registry import installed_subjects
from iobench.report.json_report import OF_THE_RUN, RunDocument
from iobench.report.json_walk import figures_of
from iobench.report.wrapping import wrapped

WIDTH: Final = 100
PARAMETER: Final = re.compile(r"^(\w+(?:, \w+)*)(?: : (.*))?$")
NONE: Final = re.compile(r"\bNone\b")
TITLE: Final = "Keys of iobench report --json"
INTRODUCTION: Final = (
    "Keys that end in _ns are whole nanoseconds; those in _s the same in seconds, unrounded; "
    "fractions are from 0 to 1. What is not known is null, and never 0. There is one of runs for "
    "each profile, of a job of several training processes one for each rank; job is of the whole "
    "job of a script, with what its training processes waited for where there were several. What "
    "stands of the whole run stands again under steady, of its steady state, and under recurring, "
    "of a script's whole epochs after the first; both are null where there is no such part, and of "
    "passes that train alone. Figures of the wait are null where nothing asked a loader for "
    "batches."
)


@frozen
class ExplainedKey:
    """One key of JSON.

    Parameters
    ----------
    path : str
        ``"runs[].stages[].busy_s"``; ``*`` stands for a name that the run chooses.
    text : str
        What it holds.
    kind : type or None
        The dataclass whose fields are its own keys.
    """

    path: str
    text: str
    kind: type | None = None


def key_page() -> str:
    """Return the page as plain text, one key a paragraph, those inside another one below it.

    Keys side by side that are explained together are one paragraph, and what has the same keys as
    something before it names that.
    """
    lines = [TITLE, "=" * len(TITLE), "", *wrapped(INTRODUCTION, WIDTH), ""]
    first: dict[type, str] = {}
    below = ""
    shown: list[tuple[int, list[str], str]] = []
    for each in explained_keys():
        if below and each.path.startswith(below):
            continue
        path = each.path.replace(".*", "[*]")
        text, below = each.text, ""
        if each.kind is not None and first.setdefault(each.kind, path) != path:
            text, below = f"{text} Keys as of {first[each.kind]}.", f"{each.path}."
        depth, name = path.count("."), path.rpartition(".")[2]
        if shown and shown[-1][0] == depth and shown[-1][2] == text:
            shown[-1][1].append(name)
        else:
            shown.append((depth, [name], text))
    for depth, names, text in shown:
        lines += wrapped(f"{', '.join(names)}: {text}", WIDTH, indent=2 * depth, hanging=4)
    return "\n".join(lines)


def explained_keys() -> Iterator[ExplainedKey]:
    """Yield every key of the document, those of installed subjects too, with its explanation."""
    subjects = installed_subjects()
    answers = {each.name: (_answer(each.figures), _text_of(each.section)) for each in subjects}
    yield ExplainedKey("runs[]", "A run, or one training process of it.")
    for found in _keys(RunDocument, "runs[]"):
        yield found
        if found.path in ("runs[].steady", "runs[].recurring"):
            yield from (
                ExplainedKey(f"{found.path}.{name}", "As of the run.") for name in OF_THE_RUN
            )
    for subject in subjects:
        if not subject.of_job:
            yield from _of_subject(f"runs[].{subject.name}", *answers[subject.name])
    yield ExplainedKey(
        "job",
        "The whole job: where its time went, and its training processes compared step by step.",
    )
    yield from _keys(JobTime, "job")
    for subject in subjects:
        if subject.of_job:
            yield from _keys(_answer(subject.together), "job")
        elif subject.together is not None:
            yield from _of_subject(f"job.{subject.name}", *answers[subject.name])


def _of_subject(path: str, kind: Any, text: str) -> Iterator[ExplainedKey]:
    yield ExplainedKey(path, _summary(kind) or text, kind)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        yield from _keys(kind, path)


def _keys(kind: type, path: str, without: str | None = None) -> Iterator[ExplainedKey]:
    hints, texts = _hints(kind), _texts(kind)
    for each in figures_of(kind):
        inner, ending = _inside(hints.get(each.name))
        if each.inside:
            if inner is not None:
                yield from _keys(inner, path)
            continue
        ending = ".*" if each.key_of_row is not None else ending
        for name, _ in each.keys:
            if name == without:
                continue
            text = NONE.sub("null", texts.get(each.name) or _summary(inner))
            place = f"{path}.{name}{ending}" if name != ITSELF else f"{path}{ending}"
            if name != ITSELF:
                yield ExplainedKey(place, text, inner)
            if inner is not None:
                yield from _keys(inner, place, each.key_of_row)


def _inside(hint: Any) -> tuple[type | None, str]:
    """Return the dataclass inside a type, and how it is reached: by place, by name or at once."""
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return hint, ""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        found = [known for each in inner if (known := _inside(each))[0] is not None or known[1]]
        return found[0] if found else (None, "")
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _inside(inner[-1])[0], ".*"
    if isinstance(origin, type) and issubclass(origin, tuple | list):
        return _inside(inner[0])[0], "[]"
    return None, ""


def _answer(function: Any) -> Any:
    """Return the dataclass that a subject's function returns; None where it does not say."""
    return _inside(_types(function).get("return"))[0]


def _hints(kind: type) -> dict[str, Any]:
    """Return the types of all fields and figures, those imported for annotations alone too."""
    found = _types(kind)
    for base in kind.__mro__:
        for name, value in vars(base).items():
            if isinstance(value, figure):
                found[name] = _types(value.function).get("return")
    return found


def _types(told: Any) -> dict[str, Any]:
    """Return what the annotations of a class or a function name."""
    return typing.get_type_hints(told, localns=dict(_imported_for_types(told.__module__)))


@functools.cache
def _imported_for_types(module: str) -> Mapping[str, Any]:
    """Return what a module imports under ``if TYPE_CHECKING``."""
    found: dict[str, Any] = {}
    for statement in ast.parse(inspect.getsource(sys.modules[module])).body:
        if isinstance(statement, ast.If) and "TYPE_CHECKING" in ast.unparse(statement.test):
            for each in statement.body:
                if isinstance(each, ast.ImportFrom):
                    source = importlib.import_module(str(each.module))
                    found |= {name.name: getattr(source, name.name) for name in each.names}
                elif isinstance(each, ast.Import):
                    for name in each.names:
                        found[name.asname or name.name] = importlib.import_module(name.name)
    return found


def _texts(kind: type) -> dict[str, str]:
    """Return what the docstrings of a dataclass say of its fields and figures."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if dataclasses.is_dataclass(base):
            found |= _parameters(inspect.getdoc(base) or "")
        for name, value in vars(base).items():
            if isinstance(value, figure):
                found[name] = " ".join((value.__doc__ or "").split())
    return found


def _parameters(docstring: str) -> dict[str, str]:
    """Return the entries of a numpydoc section of parameters; types where there is no more."""
    _, _, section = docstring.partition("Parameters\n----------\n")
    found: dict[str, str] = {}
    names: list[str] = []
    for line in section.splitlines():
        if line and not line.startswith(" "):
            parsed = PARAMETER.match(line)
            if parsed is None:
                break
            names = parsed[1].split(", ")
            found |= dict.fromkeys(names, "")
        else:
            for name in names:
                found[name] = f"{found[name]} {line.strip()}".strip()
    return found


def _summary(kind: Any) -> str:
    return _text_of(kind) if kind is not None else ""


def _text_of(told: Any) -> str:
    return (inspect.getdoc(told) or "").partition("\n")[0]
