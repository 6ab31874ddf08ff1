"""What the five applications' samples through their real plugins have in common."""

from __future__ import annotations

import importlib.util
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from iobench.datasets import Baseline, Downloads, MapStyle, PluginDownload, open_through_plugin
from iobench.errors import FileFormatError, IobenchError, MissingExtraError, OptionError

if TYPE_CHECKING:
    from pathlib import Path

    from iobench.datasets import (
        Arrays,
        Dataset,
        Locator,
        PluginRequest,
        PublishedFiles,
        PublishedStep,
        Raw,
        SampleIndex,
        Where,
    )
    from iobench.samples import Sample

INSTALL: Final = "pip install 'iobench[climetlab]'"
Opened = Callable[[str], Any]
"""Gives what the plugin opens for the request of a name; opened once in each process."""


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
    dataset: PublishedFiles,
    arguments: Mapping[str, Any],
    *,
    is_chosen: bool = True,
    example: str = "",
    install: str = INSTALL,
) -> Downloads:
    """Return the one call of a dataset's plugin that fetches the files chosen.

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
        install=install,
        terms_of_use=dataset.terms_of_use,
        citation=dataset.citation,
    )
    return Downloads((call,))


def plugin_baseline(
    own: Dataset,
    index: SampleIndex,
    requests: Mapping[str, PluginRequest],
    cut: Callable[[Opened, Where], Any],
    *,
    needs: Sequence[str],
    source: str,
    install: str = INSTALL,
    workers: int = 2,
    keep: Callable[[Any], Any] | None = None,
    finish: Callable[[Arrays, Where], Sample] | None = None,
    is_sample: bool = False,
) -> Baseline:
    """Return how samples are cut out of what a plugin opens, in the workers of torch's loader.

    Parameters
    ----------
    own : Dataset
        Ours, indexed: finishes the samples.
    index : SampleIndex
        Of the samples; ``cut`` gets its ``where``.
    requests : mapping of str to PluginRequest
        What to open, by the names that ``cut`` calls it.
    cut : callable
        ``cut(opened, where)`` returns what our ``decode`` would, of one sample; picklable, as are
        ``keep`` and ``finish``.
    needs : sequence of str
        Packages besides CliMetLab.
    source, workers
        See `Baseline` and `MapStyle`.
    install : str
        What installs all of it.
    keep : callable, optional
        Returns what to keep of what the plugin opened; may add to it.
    finish : callable, optional
        In place of our ``preprocess``.
    is_sample : bool
        Whether what is cut is a sample already.

    Raises
    ------
    MissingExtraError
        If something is not installed.
    """
    require_plugin(own.name, *needs, install=install)
    samples = PluginSamples(own, requests, cut, keep, finish or own.preprocess)
    if is_sample:
        samples.fused = ("read", "decode", "preprocess")
    return Baseline(MapStyle(samples, index, "torch", workers, prefetch=2), source)


class PluginSamples:
    """Samples of a dataset of ours, cut out of what its plugin opens; a `Dataset`.

    Each process opens for itself, on first use: neither HDF5's handles nor threads of dask and
    CliMetLab outlive a fork, and a copy in another process travels without them.
    """

    def __init__(
        self,
        own: Dataset,
        requests: Mapping[str, PluginRequest],
        cut: Callable[[Opened, Where], Any],
        keep: Callable[[Any], Any] | None,
        finish: Callable[[Arrays, Where], Sample],
    ) -> None:
        self.name = own.name
        self.title = f"{own.title}, through the CliMetLab plugin"
        self.published: PublishedStep | None = own.published
        self.fused: tuple[str, ...] = ("read", "decode")
        self._own = own
        self._requests = dict(requests)
        self._cut, self._keep, self._finish = cut, keep, finish
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
            If the plugin cannot open the files, or made others than they should be.
        """
        return self._cut(self.opened, where)

    def decode(self, raw: Raw, where: Where) -> Arrays:
        """Refuse: ``read`` decodes."""
        raise TypeError(f"{self.name}: read decodes, call preprocess next")

    def preprocess(self, arrays: Arrays, where: Where) -> Sample:
        """Return the sample, as our own dataset makes it of these numbers."""
        return self._finish(arrays, where)

    def opened(self, name: str) -> Any:
        """Return what is kept of what the plugin opens for a request."""
        if self._process != os.getpid():
            self._opened, self._process = {}, os.getpid()
        if name not in self._opened:
            made = self._open(self._requests[name])
            self._opened[name] = made if self._keep is None else self._keep(made)
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
