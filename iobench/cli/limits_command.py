"""``iobench limits``: what the storage under a folder can do."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from iobench.cli.documents import print_answer

if TYPE_CHECKING:
    from iobench.profiling.storage_limits import Requests
    from iobench.sources.request import Screen


def limits(*, path: str, like: str | None, duration_s: float, json: bool) -> None:
    """Measure what reads of a folder's files get, and print it."""
    from msgspec import to_builtins

    from iobench.cli.limits_document import limits_document
    from iobench.cli.screen import TerminalScreen
    from iobench.errors import OptionError
    from iobench.files.urls import is_url
    from iobench.profiling.storage_limits import ANY, measured_limits

    _check_duration(duration_s)
    if is_url(path):
        raise OptionError(f"{path}: is read over the network; expected a mounted folder")
    folder = Path(path)
    requests = ANY if like is None else _requests(like, TerminalScreen())
    result = measured_limits(folder, requests, duration_s=duration_s)
    title, document = limits_document(result)
    print_answer(title, *document, figures=to_builtins(result), json=json)


def _check_duration(duration_s: float) -> None:
    from iobench.errors import OptionError

    if not 0 < duration_s <= 3600:
        raise OptionError(f"--duration {duration_s:g}: expected more than 0 and at most 3600")


def _requests(like: str, screen: Screen) -> Requests:
    """Return the reads of a dataset's, a store's or a run's samples."""
    from iobench.cli.descriptions import describe_dataset
    from iobench.errors import OptionError
    from iobench.profiling.storage_limits import requests_of_folder, requests_of_samples
    from iobench.registry import dataset_names, unknown_name

    if like not in dataset_names():
        if not Path(like).exists():
            raise unknown_name("dataset", like, dataset_names())
        result = requests_of_folder(Path(like))
        if result is None:
            raise OptionError(
                f"--like {like}: is not a dataset, a store or a run; check the spelling"
            )
        return result
    facts = describe_dataset(like, options={}, data_dir=None, files=None, screen=screen)
    text = f"samples of {like}, according to {facts['told_from']}"
    return requests_of_samples(facts["files"]["nbytes"], facts["n_samples"], text)
