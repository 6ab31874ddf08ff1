"""What the applications have in common with their real CliMetLab plugins."""

from __future__ import annotations

import functools
import gc
import importlib.metadata
import importlib.util
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

import msgspec

from iobench.datasets import (
    Baseline,
    Downloads,
    FileKey,
    MapStyle,
    PluginCall,
    PublishedFiles,
    Recipe,
    VariablePart,
    XarrayLoop,
    open_through_plugin,
)
from iobench.errors import FileFormatError, IobenchError, MissingExtraError, OptionError
from iobench.samples import SampleSpec, Variable

if TYPE_CHECKING:
    from iobench.datasets import NetcdfFile, SampleIndex, Where

SOURCE: Final = (
    "{package} {version}: what its to_xarray() gives, opened in each loading process; a sample is "
    "what isel takes of its variables, as they are, without iobench's preprocess. {workers} in "
    "torch's DataLoader are assumed."
)
Select = Callable[["Where"], Sequence[VariablePart]]


class PluginFiles(PublishedFiles):
    """Files that a CliMetLab plugin publishes; ``example`` is an option that chooses some."""

    package: ClassVar[str]
    install: ClassVar[str] = "pip install 'iobench[climetlab]'"
    example: ClassVar[str] = ""

    def plugin_calls(self, keys: Sequence[FileKey]) -> list[PluginCall]:
        """Return the calls of the plugin for files."""
        raise NotImplementedError

    def call(
        self, arguments: Mapping[str, Any], keys: Sequence[FileKey], name: str = ""
    ) -> PluginCall:
        """Return a call of the plugin that needs the files of these keys."""
        return PluginCall(
            name or self.name,
            arguments,
            tuple(map(self.file_url, keys)),
            self.install,
            self.terms_of_use,
            self.citation,
        )

    def calls_by_key(
        self, keys: Sequence[FileKey], name: str, arguments: Mapping[str, Any]
    ) -> list[PluginCall]:
        """Return a call for each value of a key, where the plugin takes one at a time."""
        return [self.call({name: key[name], **arguments}, [key]) for key in keys]

    def downloads(self) -> Downloads:
        if not self.is_chosen:
            raise OptionError(
                f"--download of {self.name}: say what to fetch, e.g. --option {self.example}"
            )
        return Downloads(tuple(self.plugin_calls(self.file_keys())))

    def requests(self, files: Sequence[Path]) -> dict[str, tuple[PluginCall, dict[str, Path]]]:
        """Return the calls for files at hand by a name of each, and the files by URL."""
        urls = map(self.file_url, self.keys_at_hand)
        paths = dict(zip(urls, map(Path, files), strict=False))
        return {
            " ".join([call.name, *map(str, call.arguments.values())]): (
                call,
                {url: paths[url] for url in call.urls},
            )
            for call in self.plugin_calls(self.keys_at_hand)
        }


class PluginRecipe(PluginFiles, Recipe):
    """A recipe whose files a plugin joins along a dimension, in the order of their URLs."""

    joined_dim: ClassVar[str] = ""  # by default the sample dimension
    plugin_workers: ClassVar[int] = 2

    def joined_length(self, file: NetcdfFile) -> int:
        """Return how much of a file the plugin takes along the joined dimension."""
        return file.dims[self.joined_dim or self.sample_dim]

    def plugin_variables(self, name: str) -> list[str]:
        """Return which variables of the plugin's dataset a variable of a sample is."""
        return [name]

    def joined_urls(self, call: PluginCall) -> list[list[str]]:
        """Return the URLs of a call's files that are joined with each other, in their order."""
        return [sorted(call.urls)]

    def through_plugin(self, files: Sequence[Path], index: SampleIndex) -> Baseline:
        requests = self.requests(files)
        lengths = {file.path: self.joined_length(file) for file in self.opened}
        places: dict[Path, tuple[str, int]] = {}
        for source, (call, paths) in requests.items():
            for urls in self.joined_urls(call):
                start = 0
                for url in urls:
                    places[paths[url]] = source, start
                    start += lengths[paths[url]]
        select = functools.partial(self._joined_parts, [places[file.path] for file in self.opened])
        return plugin_baseline(self, index, requests, select, workers=self.plugin_workers)

    def _joined_parts(self, places: Sequence[tuple[str, int]], where: Any) -> list[VariablePart]:
        parts = []
        for slab in self.hyperslabs(where):
            number = where[0] if slab.file is None else slab.file
            source, start = places[number]
            stored = self.opened[number].variables[slab.variable].name
            at = dict(slab.ranges)
            dim = self.joined_dim or self.sample_dim
            if dim in at or self.joined_dim:  # of several, whose number may vary, the first
                first = at.get(dim, 0)
                at[dim] = start + (first.start if isinstance(first, slice) else first)
            array = slab.name or slab.variable
            parts += [
                VariablePart(source, name, at, name=array if name == stored else name)
                for name in self.plugin_variables(stored)
            ]
        return parts


def plugin_baseline(
    own: PluginFiles,
    index: SampleIndex,
    requests: Mapping[str, tuple[PluginCall, dict[str, Path]]],
    select: Select,
    *,
    workers: int = 2,
) -> Baseline:
    """Return how samples are taken out of what a plugin opens, in workers of torch's loader.

    The plugin is opened once here, for the first sample, which says what all samples are.
    """
    if not requests:
        raise OptionError(
            f"--pipeline climetlab of {own.name}: the plugin knows files by the names they are "
            "published under; name their folder with --data-dir"
        )
    needed = ("climetlab", own.package.replace("-", "_"))
    absent = [each for each in needed if importlib.util.find_spec(each) is None]
    if absent:
        raise MissingExtraError(
            f"--pipeline climetlab of {own.name} needs {' and '.join(absent)}: {own.install}"
        )
    loop, where = XarrayLoop(select, open_source=functools.partial(_open, requests)), index.where[0]
    try:
        first = loop.read(where)
    finally:
        loop.close()
        gc.collect()  # what the plugin joined holds files, which a fork must not share
    variables = [
        Variable(name, each.shape, each.dtype.str, tuple(f"axis_{n}" for n in range(each.ndim)))
        for name, each in first.items()
    ]
    plugin_index = msgspec.structs.replace(index, spec=SampleSpec(tuple(variables)), setup={})
    source = SOURCE.format(
        package=own.package,
        version=importlib.metadata.version(own.package),
        workers=f"{workers} worker{'s' if workers > 1 else ''}",
    )
    return Baseline(MapStyle(loop, plugin_index, "torch", workers, prefetch=2), source)


def _open(requests: Mapping[str, tuple[PluginCall, dict[str, Path]]], name: str) -> Any:
    call, paths = requests[name]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the libraries' own, about each other
            return open_through_plugin(call, paths)
    except IobenchError:
        raise
    except (OSError, ValueError) as error:
        first, *others = paths.values()
        more = f" and {len(others)} more" if others else ""
        raise FileFormatError(
            f"{first}{more}: the plugin of {call.name} cannot open them: "
            f"{' '.join(str(error).split())}; fetch them again"
        ) from error
