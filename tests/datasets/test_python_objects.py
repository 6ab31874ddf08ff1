"""Python objects as datasets: map-style, iterable, of xarray, of CliMetLab."""

from __future__ import annotations

import base64
import contextlib
import gzip
import itertools
import json
import multiprocessing
import pickle
import re
import socket
import sys
import zlib
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import iobench
from iobench.cli import main
from iobench.datasets.contract import make_sample, sample_steps
from iobench.datasets.locate import ensure_stand_in
from iobench.datasets.python_objects import (
    is_object_target,
    named_arrays,
    object_dataset,
    parse_value,
    spec_of,
)
from iobench.errors import IobenchError, MissingFileError, OptionError, SampleError
from iobench.testing import DatasetTests
from iobench_maelstrom.power.features import PowerFeatures

xarray = pytest.importorskip("xarray", reason="xarray is not installed")
pytest.importorskip("netCDF4", reason="netCDF4 is not installed")
pytestmark = [
    pytest.mark.filterwarnings("ignore:numpy.ndarray size changed:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of forks, and of CliMetLab
]
FIRST_DAY = 1704067200.0  # 2024-01-01
MODULE = """
import numpy as np
import xarray

class Squares:
    def __init__(self, n=5, scale=1.0):
        self.n, self.scale = n, scale
    def __len__(self):
        return self.n
    def __getitem__(self, i):
        return {"x": np.full((2, 3), i * self.scale, "f4"), "y": i * i, "name": f"number {i}"}

class Needy(Squares):
    def __init__(self, folder):
        super().__init__()

class Growing(Squares):
    def __getitem__(self, i):
        return np.zeros(1 + i // 3)

class Counted:
    def __init__(self, n=6):
        self.n = n
    def __iter__(self):
        return iter(np.full(2, i, "f8") for i in range(self.n))
    def __len__(self):
        return self.n

def generated(n: int = 4):
    for i in range(n):
        yield {"v": np.float32(i)}

def text_and_number(day: str, count):
    return [np.array([len(day)]) for _ in range(count)]

def signed(url="", api_key=""):
    return Squares(12)

def nothing():
    return None

def broken():
    raise RuntimeError("no such disk\\nand more")

def number():
    return 17

def empty():
    return []

def empty_stream():
    return iter([])

def lazily():
    return xarray.open_dataset("fields.nc")

def with_dask():
    return xarray.open_dataset("fields.nc", chunks={"time": 2})

def in_memory():
    with xarray.open_dataset("fields.nc") as lazy:
        return lazy.load()

ready = Squares(3)
"""


def fields():
    random = np.random.default_rng(1)
    times = np.datetime64("2024-01-01", "ns") + np.arange(6) * np.timedelta64(6, "h")
    values = random.normal(size=(6, 3, 4)).astype("f4")
    return xarray.Dataset(
        {
            "t2m": (("time", "y", "x"), values, {"units": "K"}),
            "packed": (("y", "time"), random.integers(0, 9, (3, 6)) + 0.5, {"units": "m"}),
            "area": (("y", "x"), np.ones((3, 4))),
            "when": (("time",), np.arange(6).astype("timedelta64[s]")),
            "cells": (("time", "bound"), np.zeros((6, 2))),
        },
        {
            "time": (("time",), times),
            "latitude": (("y", "x"), np.zeros((3, 4)), {"bounds": "cells"}),
            "station": (("time",), np.arange(6)),
        },
    )  # fmt: skip


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    """The module ``mydata`` and its file in the current folder, forgotten afterwards."""
    (tmp_path / "mydata.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    sys.modules.pop("mydata", None)
    yield tmp_path
    sys.path[:] = before
    for name in ("mydata", "badly", "needy"):
        sys.modules.pop(name, None)


@pytest.fixture
def own_files(own_module):
    encoding = {"packed": {"dtype": "i2", "scale_factor": 0.5, "_FillValue": -1}}
    encoding["time"] = {"units": "hours since 2024-01-01", "dtype": "f8"}
    fields().to_netcdf(own_module / "fields.nc", encoding=encoding)
    return own_module


@pytest.fixture
def opened(locator):
    """Make a dataset of an object, and index it."""

    def open_object(target, **options):
        dataset = object_dataset(target, **options)
        return dataset, dataset.samples(dataset.files(locator), locator)

    return open_object


# ---- names, options, what is refused


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3), ("-3", -3), ("0", 0), ("007", "007"), ("20200101", 20200101),
        ("1.5", 1.5), ("1e3", 1000.0), (".5", ".5"), ("1_000", "1_000"), ("nan", "nan"),
        ("true", True), ("False", "False"), ("null", None), ("tier-1", "tier-1"),
        ('"true"', "true"), ('[1, "b", 2.5]', [1, "b", 2.5]), ("[]", []), ("[b]", "[b]"),
        ("a,b", "a,b"), ("", ""), ("2020-03-01", "2020-03-01"), ("'", "'"), (4, 4),
    ],
)  # fmt: skip
def test_values_of_options(text, value):
    parsed = parse_value(text)
    assert parsed == value
    assert type(parsed) is type(value)


def test_targets_are_known(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for text in ("a:b", "a.b.c:D.e", "climetlab:maelstrom-yr", "_x:y1"):
        assert is_object_target(text)
        (tmp_path / text).write_text("a file of that name comes first")
        assert not is_object_target(text)
    for text in ("a", "a/b:c", "a.nc", "a:b:c", "1a:b", "a:", ":b", "C:\\x.nc"):
        assert not is_object_target(text)


@pytest.mark.parametrize(
    ("target", "options", "expected"),
    [
        ("nowhere.at.all:x", {}, "ModuleNotFoundError: No module named 'nowhere'; .* the folder"),
        ("mydata:Squares.nope", {}, "taking Squares.nope raised AttributeError: .*'nope'"),
        ("mydata:nothing", {}, "is of type NoneType; expected a dataset with"),
        ("mydata:broken", {}, "raised RuntimeError: no such disk .*/mydata.py:[0-9]+.; mend"),
        ("mydata:number", {}, "is of type int; expected a dataset with __len__"),
        ("mydata:__name__", {}, "is of type str"),
        ("mydata:Squares", {"m": "3"}, r"unexpected keyword argument 'm'; .* --option NAME=VALUE"),
        ("mydata:Needy", {}, "missing a required argument: 'folder'; .*: mydata:FUNCTION"),
        ("mydata:ready", {"n": "3"}, "not callable, so it takes no --option"),
        ("mydata:empty", {}, "its length is 0"),
        ("mydata:empty_stream", {}, "is empty; give something that has samples"),
        ("badly:x", {}, "importing badly raised SyntaxError"),
        ("needy:x", {}, "importing needy raised ModuleNotFoundError: .*absent_library"),
        ("mydata", {}, "expected package.module:callable"),
    ],
)
def test_errors_are_one_line_and_say_what_to_do(own_module, opened, target, options, expected):
    (own_module / "badly.py").write_text("def x(:\n")
    (own_module / "needy.py").write_text("import absent_library\n")
    with pytest.raises(IobenchError, match=expected) as caught:
        opened(target, options=options)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith((target, f"{target!r}"))


@pytest.mark.parametrize(
    ("value", "options", "expected"),
    [
        *((each, {}, "expected a dataset with __len__ and") for each in ({"a": 1}, 3.5, b"bytes")),
        ([1], {"options": {"n": 1}}, "options n: the list is made already"),
        ([1, 2], {"sample_dim": "time"}, "--sample-dim and --variables need an xarray"),
        (iter([1, 2]), {}, "can be gone through once; give what makes it"),
        (
            fields().isel(time=slice(0, 0)), {"sample_dim": "time"},
            "its dimension time is empty",
        ),
        ("climetlab:", {"sample_dim": "day"}, "climetlab:: name a dataset"),
        *(
            ("mydata:lazily", options, expected)
            for options, expected in (
                ({}, r"say which dimension counts samples with --sample-dim; .* time \(6\)"),
                ({"sample_dim": "lon"}, r"--sample-dim lon: .* no such dimension; .* y \(3\)"),
                ({"sample_dim": "time", "variables": ["t"]}, "no variable t; .* have t2m"),
                ({"sample_dim": "time", "variables": ["when"]}, "no variable when .*timedelta64"),
                ({"sample_dim": "bound"}, "--sample-dim bound: no variable of mydata:lazily has"),
            )
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_a_dataset_is_refused(own_files, opened, value, options, expected):
    with pytest.raises(OptionError, match=expected):
        opened(value, **options)


def test_loaders_of_batches_are_refused(own_module, opened):
    torch_data = pytest.importorskip("torch.utils.data", reason="torch is not installed")
    loader = iobench.open_dataset("mydata:Squares", store_dir=own_module).loader(2)
    for each in (loader, torch_data.DataLoader([1, 2])):
        with pytest.raises(OptionError, match="is a loader of batches; name its store or dataset"):
            opened(each)
    loader.close()


def test_options_are_arguments_and_text_where_the_callable_says_so(own_module, opened):
    dataset, index = opened("mydata:text_and_number", options={"day": "20240101", "count": "3"})
    assert len(index) == 3
    assert dataset.read(0)["0"].tolist() == [8]
    assert index.provenance["options"] == {"day": "20240101", "count": "3"}
    _, index = opened("mydata:Squares", options={"n": 3, "scale": np.float32(2)})
    options = json.loads(json.dumps(index.provenance["options"]))
    assert (options["n"], "2.0" in options["scale"]) == (3, True)


# ---- map-style datasets


class TestSquares(DatasetTests):
    @pytest.fixture
    def dataset(self, own_module):
        return object_dataset("mydata:Squares", options={"n": "7"})

    @pytest.fixture
    def files(self, dataset, locator):
        return dataset.files(locator)


def test_samples_are_fused_and_strings_left_out(own_module, opened):
    dataset, index = opened("mydata:Squares", options={"scale": "0.5"})
    assert dataset.fused == ("read", "decode", "preprocess")
    assert index.spec.names == ("x", "y")
    assert index.provenance["skipped"] == {"name": "is no number: str"}
    sample = make_sample(dataset, index.where[3])
    assert sample["y"] == 9
    np.testing.assert_array_equal(sample["x"], np.full((2, 3), 1.5, "f4"))


def test_a_sample_that_differs_is_named(own_module, opened):
    dataset, index = opened("mydata:Growing")
    make_sample(dataset, index.where[2])
    with pytest.raises(SampleError, match=r"mydata:Growing\[3\]: array '0' is .* \(2,\), expected"):
        make_sample(dataset, index.where[3])


@pytest.mark.parametrize(
    "value", [np.arange(12.0).reshape(4, 3), [np.arange(3.0) + 3 * i for i in range(4)]]
)
def test_arrays_and_lists_handed_over(opened, value):
    dataset, index = opened(value)
    assert make_sample(dataset, index.where[2])["0"].tolist() == [6, 7, 8]
    copy = pickle.loads(pickle.dumps(dataset))
    assert make_sample(copy, index.where[2])["0"].tolist() == [6, 7, 8]


Pair = namedtuple("Pair", "left right")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.zeros(3), ["0"]),
        (7, ["0"]),
        ([1.0, 2.0], ["0"]),
        ((1.0, 2.0), ["0", "1"]),
        ([np.zeros(2), 1], ["0", "1"]),
        ({"a": 1, "b": {"c": 2, 3: [np.zeros(1), np.ones(1)]}}, ["a", "b/c", "b/3/0", "b/3/1"]),
        (Pair(1, {"x": 2}), ["left", "right/x"]),
        (({"x": np.zeros(2)}, np.int16(3)), ["0/x", "1"]),
    ],
)
def test_names_of_arrays(value, expected):
    assert list(named_arrays(value, where="it")) == expected


def test_what_is_no_number_is_left_out_and_named():
    skipped: dict[str, str] = {}
    value = {"kept": 1.5, "none": None, "texts": np.array(["a"])}
    assert list(named_arrays(value, where="it", skipped=skipped)) == ["kept"]
    reasons = {"none": "is no number: NoneType", "texts": "is no number: dtype <U1"}
    assert skipped == reasons


def test_what_is_no_sample_is_an_error():
    with pytest.raises(SampleError, match=r"^here: two .* called 'a/b'; rename one$"):
        named_arrays({"a/b": 1, "a": {"b": 2}}, where="here")
    with pytest.raises(SampleError, match=r"here: has no numbers \(a is no number: str\)"):
        spec_of({}, where="here", skipped={"a": "is no number: str"})
    with pytest.raises(SampleError, match=r"here: 'a' has masked values, .* fill them"):
        named_arrays({"a": np.ma.masked_less([1.0, 2.0], 2)}, where="here")
    assert named_arrays({"a": np.ma.masked_less([1.0, 2.0], 0)}, where="here")["a"].tolist() == [
        1,
        2,
    ]


def test_tensors_of_torch():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    value = (torch.ones(2, requires_grad=True), torch.tensor(3))
    arrays = named_arrays(value, where="it")
    assert {name: array.dtype.str for name, array in arrays.items()} == {"0": "<f4", "1": "<i8"}
    with pytest.raises(SampleError, match=r"it: 'a', a Tensor, cannot be had .* convert it"):
        named_arrays({"a": torch.ones(2, dtype=torch.bfloat16)}, where="it")


# ---- iterables


def test_iterables_are_gone_through_pass_after_pass(own_module, opened):
    dataset, index = opened("mydata:generated", options={"n": "3"})
    assert (len(index), index.spec.names) == (0, ("v",))
    assert (dataset.passes.n_samples_all, dataset.passes.batched) == (0, False)
    values = [float(item["v"]) for item in itertools.islice(dataset.passes.items(0), 7)]
    assert values == [0, 1, 2, 0, 1, 2, 0]
    dataset, _ = opened("mydata:Counted", options={"n": "4"})
    assert dataset.passes.n_samples_all == 4
    for epoch in range(2):
        found = [item["0"].tolist() for item in dataset.passes.items(epoch)]
        assert found == [[i, i] for i in range(4)]
    with pytest.raises(OptionError, match="is iterable only"):
        dataset.read(0)


def test_what_is_used_up_after_a_pass_is_an_error(opened):
    class Once:
        left = 3

        def __iter__(self):
            while self.left:
                self.left -= 1
                yield np.zeros(2)

    dataset, _ = opened(Once())
    with pytest.raises(SampleError, match="pass 1 has no samples"):
        list(dataset.passes.items(0))


def test_iterables_of_frameworks(opened):
    torch = pytest.importorskip("torch", reason="torch is not installed")

    class Rows(torch.utils.data.IterableDataset):
        def __len__(self):
            return 2

        def __iter__(self):
            yield from ({"x": torch.zeros(3)}, {"x": torch.ones(3)})

    dataset, _ = opened(Rows())
    assert dataset.passes.n_samples_all == 2
    assert [item["x"].tolist() for item in dataset.passes.items(0)] == [[0] * 3, [1] * 3]
    tensorflow = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
    dataset, index = opened(tensorflow.data.Dataset.range(3).map(lambda n: {"n": n}))
    assert index.spec["n"].dtype == "<i8"
    assert [int(item["n"]) for item in dataset.passes.items(0)] == [0, 1, 2]
    endless, _ = opened(tensorflow.data.Dataset.range(2).repeat())
    assert endless.passes.n_samples_all == 0


# ---- xarray.Dataset


class TestLazy(DatasetTests):
    reads_files = False

    @pytest.fixture
    def dataset(self, own_files):
        return object_dataset("mydata:lazily", sample_dim="time")

    @pytest.fixture
    def files(self, dataset, locator):
        return dataset.files(locator)


class TestWithDask(TestLazy):
    @pytest.fixture
    def dataset(self, own_files):
        pytest.importorskip("dask", reason="dask is not installed")
        return object_dataset("mydata:with_dask", sample_dim="time")


@pytest.mark.parametrize("name", ["lazily", "in_memory"])
def test_samples_are_what_isel_gives(own_files, opened, name):
    dataset, index = opened(f"mydata:{name}", sample_dim="time")
    assert [step for step, _ in sample_steps(dataset)] == ["read+decode", "preprocess"]
    assert index.spec.names == ("t2m", "packed")
    assert (index.spec["t2m"].dims, index.spec["t2m"].units) == (("y", "x"), "K")
    truth = fields()
    for number in range(6):
        sample = make_sample(dataset, index.where[number])
        for each in index.spec.names:
            np.testing.assert_array_equal(sample[each], truth[each].isel(time=number).values)
    assert index.provenance["skipped"] == {
        "area": "lacks the dimension time",
        "when": "is no number: dtype timedelta64[s]",
        "cells": "a coordinate",
        "time": "is no number: dtype datetime64[ns]",
        "latitude": "a coordinate",
        "station": "a coordinate",
    }
    assert list(index.positions[:3]) == [FIRST_DAY, FIRST_DAY + 21600, FIRST_DAY + 43200]
    assert (index.position_units, index.coordinate[1]) == ("seconds", "2024-01-01T06")


def test_variables_that_are_asked_for(own_files, opened):
    dataset, index = opened("mydata:lazily", sample_dim="time", variables=["area", "station"])
    assert {v.name: v.shape for v in index.spec} == {"area": (3, 4), "station": ()}
    assert make_sample(dataset, (4,))["station"] == 4


def test_an_array_handed_over_is_a_dataset_of_one_and_travels(opened):
    dataset, index = opened(fields().packed, sample_dim="y")
    copy = pickle.loads(pickle.dumps(dataset))
    np.testing.assert_array_equal(make_sample(copy, (1,))["packed"], fields().packed.values[1])
    assert list(index.positions) == [0, 1, 2]


@pytest.mark.parametrize(
    ("labels", "positions"),
    [
        ([1, 3, 4], [1.0, 3.0, 4.0]),
        ([5, 3, 2], [5.0, 3.0, 2.0]),
        (["a", "b", "c"], [0.0, 1.0, 2.0]),
        (np.array([0, 60, 90], "timedelta64[s]"), [0.0, 60.0, 90.0]),
        (np.array(["1970-01-31", "1970-02-28", "1970-03-31"], "datetime64[ns]"), [0.0, 1.0, 2.0]),
        (
            xarray.date_range("1970-02-01", periods=3, calendar="360_day", use_cftime=True),
            [30 * 86400.0, 31 * 86400.0, 32 * 86400.0],
        ),
    ],
)
def test_samples_lie_where_their_coordinate_says_else_they_are_counted(opened, labels, positions):
    value = xarray.Dataset({"v": (("t", "x"), np.zeros((3, 2)))}, {"t": labels})
    _, index = opened(value, sample_dim="t")
    assert list(index.positions) == list(positions)


# ---- through commands


def holds(data: bytes, secret: bytes) -> bool:
    """Return whether bytes hold a secret, as they are or deflated as pages have it."""
    pieces = [data]
    for packed in re.findall(rb"[A-Za-z0-9+/]{24,}={0,2}", data):
        with contextlib.suppress(ValueError, zlib.error):
            pieces.append(zlib.decompress(base64.b64decode(packed)))
    with contextlib.suppress(OSError, EOFError, zlib.error):
        pieces.append(gzip.decompress(data))
    return any(secret in piece for piece in pieces)


def test_no_secret_in_any_file_of_probes_runs_and_stores(own_module, tmp_path, capsys, monkeypatch):
    """A store is verified with its secret given again; without it, it is said which one."""
    secret = b"QQsecretQQ"
    assert holds(base64.b64encode(zlib.compress(b'{"a": "QQsecretQQ"}' * 9)), secret)
    options = ["--option", "api_key=QQsecretQQ", "--option", "url=https://me:QQsecretQQ@host/x"]
    monkeypatch.setenv("IOBENCH_STORE_DIR", str(tmp_path / "places"))
    source = "mydata:signed"
    quick = ("--batches", "6", "--compute", "none", "--workers", "0", "--format", "source,numpy")
    assert main(["profile", source, *options, *quick, "--out", "run"]) == 0
    assert main(["report", "run", "--html", "page.html"]) == 0
    assert main(["convert", source, "store", "--to", "numpy", *options]) == 0
    other = [text.replace("QQsecret", "QQother") for text in options]
    # With another secret it is the same store.
    assert main(["convert", source, "store", "--to", "numpy", *other]) == 0
    request = json.loads(Path("store/iobench.json").read_text())["provenance"]["request"]
    assert request["options"] == {"api_key": "***", "url": "https://***@host/x"}
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert {"iobench.json", "run.json", "page.html"} <= {file.name for file in files}
    assert any("places" in file.parts and file.name == "iobench.json" for file in files)
    assert not [file for file in files if holds(file.read_bytes(), secret)]
    assert main(["verify", "store", "--against", source, *options]) == 0
    capsys.readouterr()
    assert main(["verify", "store", "--against", source, *options[:2]]) == 1
    (line,) = [one for one in capsys.readouterr().err.splitlines() if one.startswith("iobench:")]
    assert "--option url" in line
    assert "api_key" not in line


# ---- climetlab:NAME, with the network cut off


@pytest.fixture
def climetlab(tmp_path, monkeypatch):
    """CliMetLab with a cache of the test's own, and a dataset of a registry of the user's own."""
    library = pytest.importorskip("climetlab", reason="climetlab is not installed")
    from climetlab.core import plugins
    from climetlab.datasets import Dataset

    class MadeUp(Dataset):
        terms_of_use = "do good with it"
        citation = "-"

        def __init__(self, factor=1, days=(1,)):
            self.factor, self.days = factor, days

        def to_xarray(self):
            values = np.arange(12.0).reshape(4, 3) * self.factor
            return xarray.Dataset({"v": (("day", "x"), values)}).isel(day=list(self.days))

    class Entry:
        @staticmethod
        def load():
            return MadeUp

    def refuse(*arguments):
        raise AssertionError(f"tried to connect to {arguments[1:]}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    with library.settings.temporary("cache-directory", str(tmp_path / "cache")):
        yield lambda: monkeypatch.setitem(plugins.PLUGINS, "dataset", {"made-up": Entry})


def test_a_dataset_of_another_registry(climetlab, opened):
    climetlab()
    options: dict[str, Any] = {"factor": "0.5", "days": "[0, 3]"}
    dataset, index = opened("climetlab:made-up", sample_dim="day", options=options)
    assert len(index) == 2
    assert make_sample(dataset, index.where[1])["v"].tolist() == [4.5, 5.0, 5.5]
    assert index.provenance["terms_of_use"] == "do good with it"
    assert "citation" not in index.provenance
    assert index.provenance["options"] == {"factor": 0.5, "days": [0, 3]}
    for target, options, expected in (
        ("climetlab:made-up", {"colour": "1"}, "raised TypeError: .*colour"),
        ("climetlab:no-such-one", {}, r"Cannot find dataset 'no-such-one'.*values are"),
    ):
        with pytest.raises(IobenchError, match=expected):
            opened(target, options=options, sample_dim="day")


@pytest.mark.long
@pytest.mark.timeout(100)
def test_a_forked_process_opens_it_for_itself(climetlab, monkeypatch, opened, tmp_path):
    """The thread of CliMetLab's cache does not outlive a fork: it must not be waited for."""
    pytest.importorskip(
        "climetlab_maelstrom_power_production.dataset", reason="the real plugin is not installed"
    )
    from climetlab import mirrors

    with pytest.raises(MissingFileError, match=r"ECMWF_AB137\.nc is neither in .*load it once"):
        opened("climetlab:maelstrom-constants-a-b", sample_dim="level")
    root = ensure_stand_in(PowerFeatures(), tmp_path / "stand-in", tiny=True)
    monkeypatch.setenv("CLIMETLAB_MIRROR", str(root))  # which is read when it is imported
    mirrors._reset_mirrors(use_env_var=True)
    try:
        dataset, index = opened("climetlab:maelstrom-constants-a-b", sample_dim="dim0_0")
        context = multiprocessing.get_context("fork")
        answers = context.SimpleQueue()
        child = context.Process(
            target=lambda: answers.put(make_sample(dataset, index.where[1])), daemon=True
        )
        child.start()
        child.join(40)
        if child.is_alive():
            child.kill()
        assert child.exitcode == 0
        made, expected = answers.get(), make_sample(dataset, index.where[1])
    finally:
        mirrors._reset_mirrors(use_env_var=False)
    assert made.keys() == expected.keys()
    assert all(np.array_equal(made[name], expected[name]) for name in expected)
