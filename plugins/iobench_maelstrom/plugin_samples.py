"""What the five applications' samples through their real plugins have in common."""

from __future__ import annotations

import importlib.util
import os
import warnings
from typing import TYPE_CHECKING, Any, Final

from iobench.datasets import Downloads, PluginDownload, open_through_plugin
from iobench.errors import FileFormatError, IobenchError, MissingExtraError, OptionError
from iobench_maelstrom.hdf5_lock import LIBRARY

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from iobench.datasets import (
        Arrays,
        Dataset,
        Locator,
        PluginRequest,
        PublishedStep,
        Raw,
        Recipe,
        SampleIndex,
        Where,
    )
    from iobench.samples import Sample

__all__ = ["PluginSamples", "plugin_downloads", "require_plugin"]

INSTALL: Final = "pip install 'iobench[climetlab]'"


def require_plugin(name: str, *packages: str, install: str = INSTALL) -> None:
    """Check that CliMetLab and a plugin are installed, importing neither.

    They start threads, which do not live through the fork that makes the workers.

    Parameters
    ----------
    name : str
        The dataset's.
    *packages : str
        What it needs besides CliMetLab.
    install : str
        What installs all of it.

    Raises
    ------
    MissingExtraError
        If something is not installed.
    """
    absent = [each for each in ("climetlab", *packages) if importlib.util.find_spec(each) is None]
    if absent:
        raise MissingExtraError(
            f"--pipeline climetlab of {name} needs {' and '.join(absent)}: {install}"
        )


def plugin_downloads(
    dataset: Recipe, arguments: Mapping[str, Any], *, is_chosen: bool, example: str
) -> Downloads:
    """Return the one call of a recipe's plugin that fetches the files chosen.

    Raises
    ------
    OptionError
        If none were: the whole of a data set is never fetched by default.
    """
    if not is_chosen:
        raise OptionError(
            f"--download of {dataset.name}: say what to fetch, e.g. --option {example}"
        )
    call = PluginDownload(
        dataset.name,
        arguments,
        tuple(dataset.urls()),
        terms_of_use=dataset.terms_of_use,
        citation=dataset.citation,
    )
    return Downloads((call,))


class PluginSamples:
    """Samples of a dataset of ours, cut out of what its plugin opens; a `Dataset`.

    A subclass says in ``cut`` what one sample is. Each process opens for itself, on first use:
    neither HDF5's handles nor threads of dask and CliMetLab outlive a fork, and a copy in another
    process travels without them.

    Parameters
    ----------
    own : Dataset
        Ours, indexed: finishes the samples.
    requests : mapping of str to PluginRequest
        What to open, by what a subclass calls it.
    """

    fused: tuple[str, ...] = ("read", "decode")

    def __init__(self, own: Dataset, requests: Mapping[str, PluginRequest]) -> None:
        self.name = own.name
        self.title = f"{own.title}, through the CliMetLab plugin"
        self.published: PublishedStep | None = own.published
        self._own = own
        self._requests = dict(requests)
        self._opened: dict[str, Any] = {}
        self._process = os.getpid()

    def __getstate__(self) -> dict[str, Any]:
        """Travel to another process without what is open."""
        return {**self.__dict__, "_opened": {}}

    def files(self, locator: Locator) -> list[Path]:
        """Return the files of our own dataset."""
        return self._own.files(locator)

    def samples(self, files: Sequence[Path], locator: Locator) -> SampleIndex:
        """Return the samples of our own dataset."""
        return self._own.samples(files, locator)

    def read(self, where: Where) -> Any:
        """Return the numbers of one sample, through xarray.

        Raises
        ------
        MissingFileError
            If a file is gone.
        FileFormatError
            If the plugin cannot open the files.
        """
        with LIBRARY:  # where there are no workers, another pipeline's threads read beside this one
            return self.cut(where)

    def cut(self, where: Where) -> Any:
        """Return what our ``decode`` would, of one sample."""
        raise NotImplementedError

    def decode(self, raw: Raw, where: Where) -> Arrays:
        """Refuse: ``read`` decodes."""
        raise TypeError(f"{self.name}: read decodes, call preprocess next")

    def preprocess(self, arrays: Arrays, where: Where) -> Sample:
        """Return the sample, as our own dataset makes it of these numbers."""
        return self._own.preprocess(arrays, where)

    def opened(self, name: str) -> Any:
        """Return what the plugin opens for a request, as `kept`; opened once in each process."""
        if self._process != os.getpid():
            self._opened, self._process = {}, os.getpid()
        if name not in self._opened:
            self._opened[name] = self.kept(self._open(self._requests[name]))
        return self._opened[name]

    def _open(self, request: PluginRequest) -> Any:
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
                f"{first}{beside}: the plugin of {self.name} cannot open them: "
                f"{' '.join(str(error).split())}; fetch them again"
            ) from error

    def kept(self, made: Any) -> Any:
        """Return what of the opened is kept; a subclass may add to it."""
        return made
