"""Shards that several processes share, each with a part of them: ``--part K/N``."""

from __future__ import annotations

import multiprocessing

import numpy as np
import pytest
from converting import content, convert

from iobench.errors import OptionError, StoreError
from iobench.files.locks import JOURNAL_NAME
from iobench.samples import SampleSpec, Variable
from iobench.stores.encoding import Encoding
from iobench.testing import MadeUpDataset
from iobench_converters import numpy_records, tfrecord, zarr_groups

SPEC = SampleSpec((Variable("x", (3, 5), "f4", ("y", "x"), "K"), Variable("t", (), "i4", ())))
FORMATS = {
    "tfrecord": (tfrecord.FORMAT, {}),
    "numpy": (numpy_records.FORMAT, {}),
    "zarr": (zarr_groups.FORMAT, {}),
    "zarr of chunks": (zarr_groups.FORMAT, {"chunk-samples": "2", "codec": "zstd"}),
}
FORK = multiprocessing.get_context("fork")
N_SAMPLES = 15

pytestmark = [
    pytest.mark.timeout(90),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning"),
]


class Counting(MadeUpDataset):
    """Counts which samples are read; fails at one."""

    def __init__(self, fails_at=-1):
        super().__init__(SPEC)
        self.fails_at, self.reads = fails_at, set()

    def read(self, where):
        self.reads.add(where)
        if where == self.fails_at:
            raise RuntimeError
        return super().read(where)


class Finite(MadeUpDataset):
    def preprocess(self, arrays, where):
        sample = super().preprocess(arrays, where)
        return {"x": np.full((3, 5), where, "f4"), "t": sample["t"]}


def run(path, fmt="numpy", *, dataset=None, **more):
    dataset = dataset or Counting()
    arguments = {"shard_nbytes": 2 * SPEC.nbytes, "workers": 2} | more
    container, options = FORMATS[fmt]
    index = dataset.index(N_SAMPLES)
    return convert(dataset, index, container, path, options=options, **arguments)


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("encoding", [None, "int16"])
def test_the_last_part_finishes_the_store(tmp_path, fmt, encoding) -> None:
    more = {} if encoding is None else {"encoding": Encoding.parse(dtype=encoding)}
    if encoding == "int16":  # no NaN then
        more["dataset"] = Finite(SPEC)
    run(tmp_path / "whole", fmt, **more)
    for part in (2, 3):
        assert run(tmp_path / "store", fmt, part=(part, 3), **more) is None
    assert (tmp_path / "store" / JOURNAL_NAME).exists()
    store = run(tmp_path / "store", fmt, part=(1, 3), **more)
    assert len(store) == N_SAMPLES
    assert content(tmp_path / "store") == content(tmp_path / "whole")
    assert len(run(tmp_path / "store", fmt, part=(2, 3), **more)) == N_SAMPLES


def test_a_part_makes_its_own_shards_and_goes_on(tmp_path) -> None:
    own = {number for number in range(N_SAMPLES) if number // 2 % 3 == 1}
    with pytest.raises(RuntimeError):
        run(tmp_path / "store", dataset=Counting(9), part=(2, 3))
    again = Counting()
    run(tmp_path / "store", dataset=again, part=(2, 3))
    assert again.reads <= own
    whole = Counting()
    run(tmp_path / "other", dataset=whole, part=(2, 3))
    assert whole.reads == own


def test_parts_at_once_make_the_same(tmp_path) -> None:
    run(tmp_path / "whole")
    processes = [
        FORK.Process(target=run, args=(tmp_path / "store",), kwargs={"part": (part, 4)})
        for part in (1, 2, 3, 4)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * 4
    assert content(tmp_path / "store") == content(tmp_path / "whole")


def test_another_number_of_parts_is_refused(tmp_path) -> None:
    run(tmp_path / "store", part=(1, 2))
    for part in ((1, 3), (1, 1)):
        with pytest.raises(StoreError, match=r"was begun in 2 parts, not .: continue with --part"):
            run(tmp_path / "store", part=part)
    assert len(run(tmp_path / "store", part=(2, 2))) == N_SAMPLES


@pytest.mark.parametrize("part", [(0, 2), (3, 2)])
def test_a_part_that_there_is_not(tmp_path, part) -> None:
    with pytest.raises(OptionError, match="expected K/N, K from 1 to N"):
        run(tmp_path / "store", part=part)


def test_an_unfinished_store_of_an_earlier_version_is_refused(tmp_path) -> None:
    with pytest.raises(RuntimeError):
        run(tmp_path / "store", dataset=Counting(9))
    plan = tmp_path / "store" / JOURNAL_NAME / "plan"
    plan.write_text(plan.read_text().replace('"n_parts": 1,', ""))
    with pytest.raises(StoreError, match=r"no plan of this version.*run the same command again"):
        run(tmp_path / "store")
