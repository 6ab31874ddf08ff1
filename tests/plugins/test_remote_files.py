"""Published files where they lie, in a bucket: the samples of files here, by ranges."""

from __future__ import annotations

import pickle
import socket

import numpy as np
import pytest

import iobench
from iobench.errors import (
    FileFormatError,
    MissingFileError,
    OptionError,
    StorageError,
)
from iobench.files.urls import URL
from iobench.registry import dataset_names, find_dataset
from tests.support.asked_objects import counted_requests
from tests.support.http_files import serve

pytest.importorskip("obstore", reason="speaks S3")

OPTIONS = {
    "maelstrom-yr": {"size": "5GB"},
    "maelstrom-radiation-tf": {"norm": "true"},
}
OTHER_NAMES = ("maelstrom-downscaling",)
"""What gives a dataset that has a name of its own, too."""
SHORT = ("cosmoflow", "deepcam", "maelstrom-ens10")
"""One of each container; the others are long."""
KEPT_WHOLE = ("maelstrom-radiation",)
"""Of these the mark of a stand-in and what one file says of itself are read again."""
CASES = [
    *((name, OPTIONS.get(name, {})) for name in dataset_names() if name not in OTHER_NAMES),
    ("maelstrom-ens10", {"dtype": "pl", "target": "z500"}),
    ("maelstrom-radiation", {"raw_inputs": "true"}),
]


@pytest.fixture
def uploaded(put_files, tiny_root):
    """Put a tiny stand-in into the bucket, as a mirror; return its root here, and the address."""

    def upload(name, options):
        root = tiny_root(find_dataset(name, **options))
        return root, put_files(root, "copies")

    return upload


def some_of(count):
    return sorted({0, 1, count // 3, count // 2, count - 2, count - 1} & set(range(count)))


def as_lists(splits):
    return {name: list(numbers) for name, numbers in splits.items()}


def asked_for(function):
    with counted_requests() as counts:
        return function(), counts


@pytest.mark.timeout(110)
@pytest.mark.parametrize(
    ("name", "options"),
    [
        pytest.param(
            name,
            options,
            id="-".join([name, *options.values()]),
            marks=() if name in SHORT and not options else pytest.mark.long,
        )
        for name, options in CASES
    ],
)
def test_samples_in_a_bucket_are_those_of_files_here(name, options, uploaded, tmp_path):
    root, address = uploaded(name, options)
    where = {"options": options, "store_dir": tmp_path}
    here = iobench.open_dataset(name, data_dir=root, **where)
    there, first = asked_for(lambda: iobench.open_dataset(name, data_dir=address, **where))
    assert there.stand_in
    assert len(there) == len(here) > 0
    for told in ("spec", "provenance", "position_units"):
        assert getattr(there.index, told) == getattr(here.index, told), told
    assert as_lists(there.index.splits) == as_lists(here.index.splits)
    for told in ("coordinate", "positions", "rows"):
        assert list(getattr(there.index, told)) == list(getattr(here.index, told)), told
    sizes = [file.stat().st_size for file in there.files]
    for number in some_of(len(here)):
        expected = here[number]
        found, asked = asked_for(lambda number=number: there[number])
        assert list(found) == list(expected)
        for variable, values in expected.items():
            np.testing.assert_array_equal(found[variable], values, strict=True)
        assert asked["nbytes"] < sum(sizes)
        assert (asked["listings"], asked["states"]) == (0, 0)
    # Whether each is still what was looked into: its metadata, and its numbers for statistics.
    assert first["states"] <= 2 * len(there.files)
    again, second = asked_for(lambda: iobench.open_dataset(name, data_dir=address, **where))
    # What the files hold, short coordinates included, is kept; what else a reader asks is read.
    assert second["states"] == 0
    assert second["ranges"] <= (3 if name in KEPT_WHOLE else first["ranges"])
    assert second["listings"] <= first["listings"]
    assert len(again) == len(here)


SMALL = "maelstrom-downscaling-tier1"


@pytest.fixture
def months(uploaded):
    """The small data set in the bucket: its files here, and the folder of their copies there."""
    root, address = uploaded(SMALL, {})
    files = sorted(root.rglob("*.nc"))
    return files, f"{address}/{files[0].parent.relative_to(root).as_posix()}"


def equal_samples(found, expected):
    assert len(found) == len(expected)
    for number in some_of(len(expected)):
        for variable, values in expected[number].items():
            np.testing.assert_array_equal(found[number][variable], values, strict=True)


def test_a_web_server_that_lists_nothing(months, tmp_path):
    files, _ = months
    here = iobench.open_dataset(SMALL, data_dir=files[0].parent, store_dir=tmp_path)
    with serve(files[0].parent, "open-sesame") as server:
        address = f"http://me:open-sesame@127.0.0.1:{server.server_port}"
        there = iobench.open_dataset(SMALL, data_dir=address, store_dir=tmp_path)
        equal_samples(there, here)
        server.missing = 403  # as of a bucket that nobody may list
        there = iobench.open_dataset(SMALL, data_dir=address, store_dir=tmp_path / "anew")
        equal_samples(there, here)
        with pytest.raises(OptionError, match="may be there; choose some with options=") as told:
            iobench.open_dataset(
                "maelstrom-weather-pressure-level", data_dir=address, store_dir=tmp_path
            )
        assert "open-sesame" not in str(told.value)
    with socket.create_server(("127.0.0.1", 0)) as unused:
        nobody = f"http://127.0.0.1:{unused.getsockname()[1]}"
    with pytest.raises(StorageError, match=nobody):
        iobench.open_dataset(SMALL, data_dir=nobody, store_dir=tmp_path)


def test_what_is_wrong_is_said_in_one_line(months, bucket, tmp_path, monkeypatch):
    _, inside = months
    for where, error, said in (
        ({"data_dir": f"s3://{bucket}/nothing"}, MissingFileError, "nothing' (as a CliMetLab"),
        ({"data_dir": "s3://nobody-has-this"}, StorageError, "there is no such bucket"),
        ({"data_dir": inside, "tiny": True}, OptionError, "holds files of your own"),
        ({"data_dir": inside, "options": {"months": "99"}}, OptionError, "99"),
        ({"data_dir": inside, "options": {"months": "2016-04"}}, MissingFileError, "data_dir='s3:"),
    ):
        with pytest.raises(error) as told:
            iobench.open_dataset(SMALL, store_dir=tmp_path, **where)
        assert said in str(told.value)
        assert "\n" not in str(told.value)


def test_an_object_that_changes_or_goes_in_the_middle(months, bucket, tmp_path):
    files, inside = months
    opened = iobench.open_dataset(SMALL, data_dir=inside, store_dir=tmp_path)
    before = opened[0]
    name = URL(inside) / files[0].name
    content = bytearray(files[0].read_bytes())
    content[-64:] = bytes(64)  # as long as before
    name.write_bytes(content)
    with pytest.raises(FileFormatError, match=f"{files[0].name}: was rewritten since"):
        opened[0]
    sent = pickle.loads(pickle.dumps(opened))  # as to a process
    with pytest.raises(FileFormatError, match="was rewritten since"):
        sent[0]
    name.unlink()
    with pytest.raises(MissingFileError, match=f"{files[0].name}: no such file any more"):
        opened[0]
    name.write_bytes(files[0].read_bytes())
    again = iobench.open_dataset(SMALL, data_dir=inside, store_dir=tmp_path)
    for variable, values in before.items():
        np.testing.assert_array_equal(again[0][variable], values)


@pytest.fixture
def few_tries(monkeypatch, bucket):
    """Let the libraries try what failed three times, not ten with long waits between."""
    from iobench.files import objects

    monkeypatch.setitem(objects.TRIES, "bucket", 2)


def test_a_server_that_is_too_busy_at_first(few_tries, months, tmp_path, monkeypatch):
    from moto.s3.responses import S3Response

    files, inside = months
    here = iobench.open_dataset(SMALL, data_dir=files[0].parent, store_dir=tmp_path)
    there = iobench.open_dataset(SMALL, data_dir=inside, store_dir=tmp_path)
    answer, refused = S3Response.get_object, []

    def busy(self, *arguments):
        if len(refused) < limit:
            refused.append(1)
            body = "<Error><Code>SlowDown</Code><Message>Reduce your request rate</Message></Error>"
            return 503, {}, body
        return answer(self, *arguments)

    limit = 2
    monkeypatch.setattr(S3Response, "get_object", busy)
    equal_samples(there, here)
    assert len(refused) == limit
    limit = 10**6
    with pytest.raises(StorageError, match="Reduce your request rate") as told:
        there[0]
    assert "\n" not in str(told.value)
