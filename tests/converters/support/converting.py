"""Small conversions, and what may happen to them: samples by number, containers, children."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from iobench.samples import SampleSpec, Variable
from iobench.stores.encoding import Encoding
from iobench.stores.plan import StoreRequest
from iobench_converters import convert as driver
from iobench_converters import numpy_records, tfrecord, zarr_groups
from tests.support.made_up_dataset import MadeUpDataset

if TYPE_CHECKING:
    from collections.abc import Callable

    from iobench.stores.contract import Store

FORMATS = {"tfrecord": tfrecord.FORMAT, "numpy": numpy_records.FORMAT, "zarr": zarr_groups.FORMAT}
FORK = multiprocessing.get_context("fork")
SPEC = SampleSpec(
    (Variable("x", (3, 5), "f4", ("y", "x"), "K"), Variable("t", (), "i4", (), role="target"))
)
N_SAMPLES = 10


class Case(NamedTuple):
    """A container, its options, and a dtype with fewer bits."""

    container: Any
    options: Any = MappingProxyType({})
    dtype: str | None = None


CASES = {
    **{name: Case(fmt) for name, fmt in FORMATS.items()},
    "zarr of chunks": Case(zarr_groups.FORMAT, {"chunk-samples": "2", "codec": "zstd"}),
    "int16": Case(numpy_records.FORMAT, dtype="int16"),  # learns its range in a pass before
}


class Acting(MadeUpDataset):
    """Finite samples; notes what is read, and does something before one number is."""

    def __init__(self, number: int = -1, action: Callable[[], Any] | None = None) -> None:
        super().__init__(SPEC)
        self.number, self.action, self.reads = number, action, []

    def read(self, where: int) -> Any:
        self.reads.append(where)
        if where == self.number and self.action is not None:
            self.action()
        return super().read(where)

    def decode(self, raw: Any, where: int) -> dict[str, Any]:
        number = int.from_bytes(raw[0], "little")
        values = np.random.default_rng(number).normal(280, 10, (3, 5)).astype("f4")
        return {"x": values, "t": np.array(number, "i4")}


def fail(error: BaseException | None = None) -> Callable[[], None]:
    """Return what raises an error when it is called."""

    def action() -> None:
        raise error or RuntimeError

    return action


def run(path: Path, case: str = "tfrecord", *, dataset: Any = None, **more: Any) -> Store:
    """Convert ten samples to five shards."""
    dataset, (container, options, dtype) = dataset or Acting(), CASES[case]
    settings = {
        "shard_nbytes": 2 * SPEC.nbytes,
        "workers": 2,
        "options": dict(options),
        "index": dataset.index(N_SAMPLES),
        "fmt": container,
        "encoding": Encoding.parse(dtype=dtype and f"x={dtype}"),
    }
    return convert(dataset, path=path, **settings | more)


def convert(
    dataset: Any,
    index: Any,
    fmt: Any,
    path: Path,
    progress: Any = None,
    notice: Any = None,
    tally: Any = None,
    **more: Any,
) -> Store:
    """Convert with the fields of `StoreRequest` by name."""
    request = StoreRequest(dataset, index, fmt, path, **more)
    return driver.convert(request, progress=progress, notice=notice, tally=tally)


def in_a_child(function: Callable[..., Any], *args: Any) -> int | None:
    """Run a function in a process of its own; return its exit code."""
    process = FORK.Process(target=function, args=args)
    process.start()
    process.join(60)
    return process.exitcode


def content(path: Path) -> dict[str, bytes]:
    """Return the files below a folder, local or in a bucket, by name."""
    files = sorted(file for file in path.rglob("*") if file.is_file())
    return {file.relative_to(path).as_posix(): file.read_bytes() for file in files}
