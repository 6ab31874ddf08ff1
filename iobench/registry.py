"""Names to what is installed, through entry points, loaded on first use.

Groups: ``iobench.datasets`` (factories that take options), ``iobench.formats`` (containers),
``iobench.converters`` (how a dataset becomes a store), ``iobench.findings`` (what is asked of a
run), ``iobench.renderers`` (what makes text of a report) and ``iobench.adapters`` (functions of
libraries that are timed). First-party ones come through the same door as anybody's. A name that
nobody has is an UnknownNameError with the nearest ones.
"""

from __future__ import annotations

import difflib
import functools
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import Distribution, EntryPoint, EntryPoints, entry_points
from typing import TYPE_CHECKING, Any

from iobench.errors import IobenchError, OptionError, UnknownNameError

if TYPE_CHECKING:
    from iobench.datasets.contract import Dataset
    from iobench.findings.contract import Finding
    from iobench.report.document import Renderer
    from iobench.stores.contract import Converter, Format

SOURCE = "source"
"""The name under which ``--format`` means the original files."""
LONGEST_NAME = 200


def dataset_names() -> list[str]:
    """Return the names of all installed datasets, sorted."""
    return sorted(_points("iobench.datasets").names)


def format_names() -> list[str]:
    """Return the names of all installed store formats, sorted."""
    return sorted(_points("iobench.formats").names)


def dataset_factory(name: str) -> Callable[..., Dataset]:
    """Return what makes the dataset of that name from the user's options."""
    factory: Callable[..., Dataset] = _load("iobench.datasets", name, "dataset", dataset_names())
    return factory


def find_dataset(name: str, **options: str) -> Dataset:
    """Return the dataset of that name, or raise OptionError for options that it does not know."""
    factory = dataset_factory(name)
    try:
        return factory(**options)
    except TypeError as error:
        # An unexpected keyword is the user's; any other TypeError is the plugin's own bug.
        if "unexpected keyword argument" not in str(error):
            raise
        raise OptionError(f"dataset {name}: {str(error).split(')')[-1].strip()}") from error


def find_format(name: str) -> Format:
    """Return the store format of that name."""
    result: Format = _load("iobench.formats", name, "format", [SOURCE, *format_names()])
    return result


def find_converter() -> Converter:
    """Return what turns a dataset into a store."""
    result: Converter = _load("iobench.converters", "convert", "converter", [])
    return result


def installed_findings() -> tuple[Finding[Any], ...]:
    """Return all that is asked of a run, in the order in which reports say it."""
    return _findings_on(tuple(sys.path))


@functools.cache
def _findings_on(path: tuple[str, ...]) -> tuple[Finding[Any], ...]:
    """Return them as looked up once for a path, which takes longer than many of the answers."""
    for point in _points("iobench.subjects"):
        raise IobenchError(
            f"{point.value}: the entry point group iobench.subjects is iobench.findings now; "
            "rename it in the package's pyproject.toml and install the package again"
        )
    points: dict[str, list[EntryPoint]] = {}
    for point in _points("iobench.findings"):
        points.setdefault(point.name, []).append(point)
    result: list[Finding[Any]] = [
        _loaded("finding", name, claimed) for name, claimed in points.items()
    ]
    return tuple(sorted(result, key=lambda finding: (finding.order, finding.name)))


def renderer_names() -> list[str]:
    """Return the names of all that make text of a report, sorted."""
    return sorted(_points("iobench.renderers").names)


def find_renderer(name: str) -> Renderer:
    """Return a renderer of that name, made anew."""
    renderer: Renderer = _load("iobench.renderers", name, "renderer", renderer_names())()
    return renderer


def adapter_places() -> dict[str, str]:
    """Return where installed packages have rows of timed functions, by the module these are of."""
    return {point.name: point.value for point in _points("iobench.adapters")}


def installed_versions(*parts: object) -> dict[str, str]:
    """Return the versions of iobench and of the packages that datasets or formats are from."""
    homes = {type(each).__module__.partition(".")[0] for each in parts}
    is_used: dict[Distribution, bool] = {}
    for point in (*_points("iobench.datasets"), *_points("iobench.formats")):
        if point.dist is not None:
            is_home = point.module.partition(".")[0] in homes
            is_used[point.dist] = is_used.get(point.dist, False) or is_home
    # Each package once: its name and version are looked for in all of its README.
    named = {each.name: each for each in is_used}
    told = {k: v.version for k, v in named.items() if k == "iobench" or is_used[v]}
    return dict(sorted(told.items()))


def unknown_name(what: str, name: str, names: Iterable[str]) -> UnknownNameError:
    """Return the error for a name that is none of ``names``, with the nearest of them."""
    names = list(names)
    if len(name) > LONGEST_NAME:  # comparing takes time by the square of its length
        return UnknownNameError(f"unknown {what}: a name of {len(name)} characters")
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"there is {', '.join(names)}"
    return UnknownNameError(f"unknown {what} {name!r}: {hint}")


def _points(group: str) -> EntryPoints:
    return _points_on(tuple(sys.path), group)


@functools.cache
def _points_on(path: tuple[str, ...], group: str) -> EntryPoints:
    result: EntryPoints = _every_point_on(path).select(group=group)
    return result


@functools.cache
def _every_point_on(path: tuple[str, ...]) -> Any:
    """Return what is installed on a path, looked up once: each time costs a file a package."""
    return entry_points()


def _load(group: str, name: str, what: str, names: list[str]) -> Any:
    result = tuple(_points(group).select(name=name))
    if not result:
        raise unknown_name(what, name, names)
    return _loaded(what, name, result)


def _loaded(what: str, name: str, claimed: Sequence[EntryPoint]) -> Any:
    values = {point.value for point in claimed}
    if len(values) > 1:
        raise IobenchError(
            f"{what} {name!r} is claimed by several packages ({', '.join(sorted(values))}): "
            "uninstall one of them"
        )
    point = claimed[0]
    try:
        return point.load()
    except IobenchError:
        raise
    except (ImportError, AttributeError) as error:
        raise IobenchError(
            f"{what} {name!r} ({point.value}): cannot be loaded, {error}; expected a package that "
            "fits its installation, install it again or uninstall it"
        ) from error
