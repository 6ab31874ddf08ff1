"""What the five applications have in common with their real CliMetLab plugins."""

from __future__ import annotations

import functools
import gc
import importlib.metadata
import importlib.util
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from iobench.datasets import (
    Baseline,
    Downloads,
    MapStyle,
    PluginDownload,
    VariablePart,
    XarrayLoop,
    open_through_plugin,
)
from iobench.errors import FileFormatError, IobenchError, MissingExtraError, OptionError
from iobench.samples import SampleSpec, Variable

if TYPE_CHECKING:
    from iobench.datasets import (
        Dataset,
        PluginRequest,
        PublishedFiles,
        Recipe,
        SampleIndex,
        Where,
    )

INSTALL: Final = "pip install 'iobench[climetlab]'"
SOURCE: Final = (
    "{package} {version}: what its to_xarray() gives, opened in each loading process; a sample is "
    "what isel takes of its variables, as they are, without iobench's preprocess. {workers} in "
    "torch's DataLoader are assumed."
)


def plugin_downloads(
    dataset: PublishedFiles,
    arguments: Mapping[str, Any],
    *,
    is_chosen: bool = True,
    example: str = "",
    install: str = INSTALL,
) -> Downloads:
    """Return the one call of a dataset's plugin that fetches the files chosen."""
    if not is_chosen:
        raise OptionError(
            f"--download of {dataset.name}: say what to fetch, e.g. --option {example}"
        )
    call = PluginDownload(
        dataset.name,
        arguments,
        tuple(dataset.urls()),
        install=install,
        terms_of_use=dataset.terms_of_use,
        citation=dataset.citation,
    )
    return Downloads((call,))


def plugin_baseline(
    own: Dataset,
    index: SampleIndex,
    requests: Mapping[str, PluginRequest],
    select: Callable[[Where], Sequence[VariablePart]],
    *,
    package: str,
    install: str = INSTALL,
    workers: int = 2,
) -> Baseline:
    """Return how samples are taken out of what a plugin opens, in workers of torch's loader.

    The plugin is opened once here, for the first sample, which says what all samples are.
    """
    absent = [
        each
        for each in ("climetlab", package.replace("-", "_"))
        if importlib.util.find_spec(each) is None
    ]
    if absent:
        raise MissingExtraError(
            f"--pipeline climetlab of {own.name} needs {' and '.join(absent)}: {install}"
        )
    loop, where = XarrayLoop(select, open_source=_Opener(requests)), index.where[0]
    try:
        first = loop.read(where)
    finally:
        loop.close()
        gc.collect()  # what the plugin joined holds files, which a fork must not share
    variables = []
    for name, array in first.items():
        dims = tuple(f"axis_{number}" for number in range(array.ndim))
        variables.append(Variable(name, array.shape, array.dtype.str, dims))
    made = msgspec.structs.replace(index, spec=SampleSpec(tuple(variables)), setup={})
    told = SOURCE.format(
        package=package,
        version=importlib.metadata.version(package),
        workers=f"{workers} worker{'s' if workers > 1 else ''}",
    )
    return Baseline(MapStyle(loop, made, "torch", workers, prefetch=2), told)


def joined_files(
    own: Recipe, places: Sequence[tuple[str, int]]
) -> Callable[[Where], list[VariablePart]]:
    """Return what takes a recipe's samples out of files that a plugin joins."""
    return functools.partial(_joined_parts, own, places)


def _joined_parts(own: Recipe, places: Sequence[tuple[str, int]], where: Any) -> list[VariablePart]:
    parts = []
    for slab in own.hyperslabs(where):
        source, begins = places[where[0] if slab.file is None else slab.file]
        at = dict(slab.ranges)
        index = at.get(own.sample_dim)
        if index is not None:  # of several, whose number may vary, the first
            at[own.sample_dim] = begins + (index.start if isinstance(index, slice) else index)
        parts.append(VariablePart(source, slab.variable, at, name=slab.name))
    return parts


class _Opener:
    """Opens the datasets of a plugin's requests, by name."""

    def __init__(self, requests: Mapping[str, PluginRequest]) -> None:
        self._requests = dict(requests)

    def __call__(self, name: str) -> Any:
        request = self._requests[name]
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the libraries' own, about each other
                return open_through_plugin(request)
        except IobenchError:
            raise
        except (OSError, ValueError) as error:
            first, *others = request.files.values()
            beside = f" and {len(others)} more" if others else ""
            raise FileFormatError(
                f"{first}{beside}: the plugin of {request.name} cannot open them: "
                f"{' '.join(str(error).split())}; fetch them again"
            ) from error
