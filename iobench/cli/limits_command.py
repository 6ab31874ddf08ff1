"""``iobench limits``: what the storage under a folder can do."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from iobench.cli.documents import print_answer

if TYPE_CHECKING:
    from iobench.report.document import Table
    from iobench.storage.probe_figures import ReadFigures


def limits(*, path: str, request: str, duration_s: float, json: bool) -> None:
    """Measure what reads of a folder's files get, and print it."""
    from msgspec import to_builtins

    from iobench.cpus import available_cpus
    from iobench.errors import OptionError
    from iobench.files.urls import is_url
    from iobench.report.document import sentences
    from iobench.report.units import count, duration, nbytes
    from iobench.sizes import parse_nbytes
    from iobench.storage.probe import probe_run

    if not 0 < duration_s <= 3600:
        raise OptionError(f"--duration {duration_s:g}: expected more than 0 and at most 3600")
    if is_url(path):
        raise OptionError(f"{path}: is read over the network; expected a mounted folder")
    nbytes_each = parse_nbytes("--request", request)
    result = probe_run([Path(path)], nbytes_each, available_cpus(), duration_s=duration_s)
    mount = f" at {result.mount}" if result.mount else ""
    reads = (
        f"Random reads of {nbytes(result.request_nbytes)}; files: {count(result.n_files)}, "
        f"{nbytes(result.files_nbytes)}"
    )
    refused = [f"{each.way}: {each.refused}" for each in result.reads if each.refused]
    print_answer(
        f"{Path(path).resolve()}: {result.file_system}{mount}; host {result.host}",
        *sentences([reads]),
        _table(result.reads),
        *sentences([*refused, f"Took {duration(result.spent_ns)}, wrote nothing."]),
        figures=to_builtins(result),
        json=json,
    )


def _table(reads: tuple[ReadFigures, ...]) -> Table:
    from iobench.report.document import Column, Quantity, Table

    rows = tuple(
        (
            each.way,
            Quantity(each.threads, "count"),
            each.served_by,
            Quantity(each.bytes_per_s, "B/s"),
            Quantity(each.reads_per_s, "samples/s"),
            Quantity(each.latency_ns[0], "ns"),
            Quantity(each.latency_ns[2], "ns"),
        )
        for each in reads
        if each.latency_ns
    )
    names = ("reads", "threads", "served by", "bandwidth", "reads/s", "median", "99 %")
    return Table("", tuple(map(Column, names)), rows)
