"""``climetlab:NAME``: any dataset that CliMetLab knows, as the ``xarray.Dataset`` it makes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from iobench.datasets.locate import climetlab_cache_folder
from iobench.datasets.objects.labelled import dask_in_this_thread
from iobench.datasets.objects.targets import CLIMETLAB, in_one_line, json_options, parse_value
from iobench.datasets.real_plugins import (
    climetlab_offline,
    fail_fast,
    import_climetlab,
    is_unknown_dataset,
)
from iobench.errors import MissingFileError, OptionError, UnknownNameError


class ClimetlabObject:
    """``climetlab.load_dataset(NAME, **arguments).to_xarray()``, with the network cut off.

    Files are those of ``CLIMETLAB_MIRROR`` and of CliMetLab's cache.
    """

    is_repeatable = True

    def __init__(self, dataset: str, options: Mapping[str, Any]) -> None:
        if not dataset:
            raise OptionError(f"{CLIMETLAB}: name a dataset, e.g. {CLIMETLAB}maelstrom-yr")
        self.name = f"{CLIMETLAB}{dataset}"
        self.dataset = dataset
        self.arguments = {name: parse_value(value) for name, value in options.items()}
        self.facts: Mapping[str, Any] = {
            "object": self.name,
            "options": json_options(self.arguments),
        }

    def open(self) -> Any:
        """Return the ``xarray.Dataset``."""
        import_climetlab(self.name)
        with (
            in_one_line(f"{self.name}: load_dataset or to_xarray raised"),
            climetlab_offline(self.name) as climetlab,
            fail_fast(self._refuse),
            dask_in_this_thread(),
        ):
            try:
                loaded = climetlab.load_dataset(self.dataset, **self.arguments)
            except NameError as error:
                if not is_unknown_dataset(error):
                    raise
                raise UnknownNameError(
                    f"{self.name}: {error}; install the plugin that brings it"
                ) from error
            self.facts = {**self.facts, **_conditions(loaded)}
            return loaded.to_xarray()

    def _refuse(self, url: str) -> None:
        raise MissingFileError(
            f"{self.name}: {url} is neither in $CLIMETLAB_MIRROR nor in CliMetLab's cache "
            f"{climetlab_cache_folder()}; --download fetches it"
        )


def _conditions(loaded: Any) -> dict[str, str]:
    """Return what a dataset says of its use; ``-`` is CliMetLab's way to say nothing."""
    texts = {name: getattr(loaded, name, None) for name in ("terms_of_use", "citation")}
    return {name: text for name, text in texts.items() if isinstance(text, str) and text != "-"}
