"""A dataset in a script: its samples by number, as they are stored, without a conversion."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from iobench.datasets.contract import make_sample
from iobench.datasets.selection import chosen_splits, select_split
from iobench.errors import OptionError, parameters_named, with_parameters
from iobench.files.open_files import FileIdentities
from iobench.files.urls import as_path
from iobench.samples import is_number_below
from iobench.sources.opening import open_source
from iobench.sources.request import SourceRequest

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from iobench.datasets.contract import Progress
    from iobench.samples import SampleSpec
    from iobench.sources.opening import Source

logger = logging.getLogger("iobench")
PARAMETERS: Final = sorted({*SourceRequest.__struct_fields__} - {"targets", "options"})


class OpenDataset:
    """Samples of a dataset, each read, decoded and preprocessed when it is asked for.

    Map-style, so that it serves any framework's loader; `loader` makes them in threads, ahead.
    Picklable.

    Parameters
    ----------
    source : Source
        As `open_source` returns it.
    numbers : sequence of int
        Which samples, in their order.

    Attributes
    ----------
    dataset, index
        As `iobench.datasets` has them.
    files : sequence of Path
        The source files.
    stand_in : bool
        Whether these were generated.
    spec : SampleSpec
        What a sample is.
    """

    def __init__(self, source: Source, numbers: Sequence[int]) -> None:
        # Not the source itself: what finds files does not travel to other processes.
        self.dataset, self.index = source.dataset, source.index
        self.files, self.stand_in = source.files, source.stand_in
        self.numbers = numbers
        self.spec: SampleSpec = source.index.spec
        self._identities = FileIdentities()

    def __len__(self) -> int:
        return len(self.numbers)

    def __repr__(self) -> str:
        note = ", a stand-in" if self.stand_in else ""
        return f"<{len(self)} samples of {self.dataset.name}, {len(self.files)} files{note}>"

    def __getitem__(self, index: int) -> dict[str, NDArray[Any]]:
        if not is_number_below(index, len(self), self.dataset.name):
            raise IndexError(f"{self.dataset.name}: no sample {index}, there are {len(self)}")
        return dict(make_sample(self.dataset, self.index.where[self.numbers[index]]))

    def loader(self, batch_size: int, **options: Any) -> Any:
        """Return ``iobench.loader(self, batch_size, ...)``: batches made in threads, ahead."""
        from iobench.loaders.ring.factory import loader

        return loader(self, batch_size, **options)


class _LoggedNotes:
    """Says what a command would print, where scripts look for it."""

    def note(self, text: str) -> None:
        logger.warning(with_parameters(text))

    @contextmanager
    def progress(self, title: str, *, in_bytes: bool = False) -> Iterator[Progress]:
        logger.info(title)
        yield lambda done, total: None


def open_dataset(
    *targets: str | Path | object,
    split: str | None = None,
    options: Mapping[str, str] | None = None,
    **where: Any,
) -> OpenDataset:
    """Return the samples of a dataset, by number, as they are stored.

    Parameters
    ----------
    *targets
        What ``iobench profile`` takes: the name of a dataset, files of your own, patterns of
        them (``"*.nc"``), an object.
    split : str, optional
        One of the dataset's splits; all samples by default.
    options : mapping of str to str, optional
        The dataset's own.
    **where
        ``data_dir``, ``store_dir``, ``sample_dim``, ``variables``,
        ``target_variables``, ``split_by``, ``tiny``, ``download``: see `SourceRequest`.

    Raises
    ------
    IobenchError
        One line that says which name, file or parameter is not what it should be.
    """
    with parameters_named():
        if not targets:
            raise OptionError("open_dataset: name a dataset, or files")
        for name, value in where.items():
            if name not in PARAMETERS:
                raise OptionError(f"open_dataset: no argument {name!r}; there are {PARAMETERS}")
            if name in ("data_dir", "store_dir") and isinstance(value, str):
                where[name] = as_path(value)
            elif name == "split_by" and isinstance(value, str):
                where[name] = (value,)
            elif name in ("variables", "target_variables"):
                if isinstance(value, str) or not isinstance(value, Iterable):
                    raise OptionError(f"{name}={value!r}: expected a list of names")
                where[name] = tuple(value)
            elif name == "sample_dim" and not isinstance(value, str | None):
                raise OptionError(
                    f"{name}={value!r}: expected a name, or 'time,number' for several"
                )
        paths = tuple(str(each) if hasattr(each, "__fspath__") else each for each in targets)
        request = SourceRequest(targets=paths, options=dict(options or {}), **where)
        source = open_source(request, _LoggedNotes())
        index, names = source.index, chosen_splits(split, request.splits_by)
        return OpenDataset(source, select_split(index, *names) if names else range(len(index)))
