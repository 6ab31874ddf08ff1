"""``--download``: what each dataset asks its CliMetLab plugin for, from the options it was given.

Arguments are those that choose files; what the plugins would do to the arrays does not matter here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from iobench.datasets import Downloads, PluginDownload
from iobench.errors import OptionError
from iobench_maelstrom.ens10 import schema as ens10_schema
from iobench_maelstrom.ens10.ens5mini_schema import month_url
from iobench_maelstrom.radiation import schema as radiation_schema
from iobench_maelstrom.radiation.norms import norm_urls

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from iobench_maelstrom.ens10.dataset import Ens10
    from iobench_maelstrom.ens10.ens5mini import Ens5mini
    from iobench_maelstrom.radiation.dataset import Radiation
    from iobench_maelstrom.radiation.tf_dataset import RadiationTf

__all__ = [
    "ens5mini_downloads",
    "ens10_downloads",
    "radiation_downloads",
    "radiation_tf_downloads",
]

T = TypeVar("T")
NO_DEPS = "pip install --no-deps"
INSTALL_RADIATION = f"{NO_DEPS} climetlab-maelstrom-radiation==0.7.5"
INSTALL_RADIATION_TF = f"{INSTALL_RADIATION} && pip install 'iobench[tensorflow]'"


def radiation_downloads(dataset: Radiation) -> Downloads:
    """Return what ``maelstrom-radiation`` fetches: files of inputs, and of the solver's outputs."""
    pairs = dataset.pairs
    arguments = {
        "dataset": dataset.solver,
        "date": _distinct(pair.date for pair in pairs),
        "timestep": _distinct(pair.timestep for pair in pairs),
        "patch": _distinct(pair.patch for pair in pairs),
    }
    urls = [url for pair in pairs for url in (pair.input_url(), pair.output_url(dataset.solver))]
    call = PluginDownload(
        dataset.name,
        arguments,
        tuple(urls),
        install=INSTALL_RADIATION,
        terms_of_use=radiation_schema.TERMS_OF_USE,
    )
    return Downloads((call,))


def radiation_tf_downloads(dataset: RadiationTf) -> Downloads:
    """Return what ``maelstrom-radiation-tf`` fetches, with the norms where they are asked for."""
    files, view = dataset.example_files, dataset.view
    arguments: dict[str, Any] = {
        "dataset": dataset.solver,
        "timestep": _distinct(file.timestep for file in files),
        "filenum": _distinct(file.number for file in files),
    }
    urls = [file.url() for file in files]
    if view.norm:
        arguments |= {"norm": True, "input_fields": list(view.input_fields)}
        urls += norm_urls(view.input_fields)
    call = PluginDownload(
        dataset.name,
        arguments,
        tuple(urls),
        install=INSTALL_RADIATION_TF,
        terms_of_use=radiation_schema.TERMS_OF_USE,
    )
    return Downloads((call,))


def ens10_downloads(dataset: Ens10) -> Downloads:
    """Return what ``maelstrom-ens10`` fetches; the ERA5 target is nowhere to be had by itself.

    The plugin takes one start date at a time.
    """
    dtype = dataset.task.dtype
    calls = tuple(
        PluginDownload(
            dataset.name,
            {"date": date, "dtype": dtype},
            (ens10_schema.forecast_url(date, dtype),),
            terms_of_use=ens10_schema.TERMS,
            citation=ens10_schema.CITATION,
        )
        for date in _chosen(dataset.name, "date", "0101,0104", dataset.dates)
    )
    return Downloads(calls, others=(dataset.task.target_url,) if dataset.has_target else ())


def ens5mini_downloads(dataset: Ens5mini) -> Downloads:
    """Return what ``maelstrom-ens5mini`` fetches; the plugin takes one month at a time."""
    return Downloads(
        tuple(
            PluginDownload(
                dataset.name,
                {"date": month},
                (month_url(month),),
                terms_of_use=ens10_schema.TERMS,
                citation=ens10_schema.CITATION,
            )
            for month in _chosen(dataset.name, "date", "01", dataset.months)
        )
    )


def _chosen(dataset: str, option: str, example: str, choice: Sequence[T]) -> Sequence[T]:
    """Return what the user chose.

    Raises
    ------
    OptionError
        If that is nothing: the whole of it is never fetched by default.
    """
    if not choice:
        raise OptionError(
            f"--download of {dataset}: say what to fetch, e.g. --option {option}={example}"
        )
    return choice


def _distinct(values: Iterable[T]) -> list[T]:
    return list(dict.fromkeys(values))
