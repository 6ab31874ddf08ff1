"""``iobench list``: the datasets and formats that are installed."""

from __future__ import annotations

from iobench.cli.documents import print_answer
from iobench.errors import OptionError
from iobench.registry import SOURCE, dataset_names, find_dataset, format_names
from iobench.report.document import Section, properties


def list_(*, json: bool) -> None:
    """List the datasets and store formats by the names other commands take."""
    datasets = [{"name": name, "title": _title(name)} for name in dataset_names()]
    formats = [SOURCE, *format_names()]
    print_answer(
        "Names that other commands accept",
        Section("datasets", "datasets", (properties((d["name"], d["title"]) for d in datasets),)),
        Section("formats", "formats", (properties((name,) for name in formats),)),
        figures={"datasets": datasets, "formats": formats},
        json=json,
    )


def _title(name: str) -> str:
    """Return a dataset's title; of one that cannot be made without an option, which it needs."""
    try:
        return find_dataset(name).title
    except OptionError as error:
        return str(error).removeprefix(f"{name}: ")
