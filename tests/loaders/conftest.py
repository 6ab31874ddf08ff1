"""Small stores of any format, and helpers where processes that tests spawn can import them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent / "support"))

from iobench import testing
from iobench.recording.run_directory import RunDirectory
from iobench.registry import find_format
from iobench.stores.finished_store import open_store


@pytest.fixture
def run(tmp_path):
    return RunDirectory.create(tmp_path / "run", {})


@pytest.fixture
def consumer(run):
    with run.recorder(role="consumer") as recorder:
        yield recorder


@pytest.fixture(scope="session")
def store_writer():
    """Return a function that writes samples into a folder and opens the store."""

    def write(path, spec, samples, fmt="numpy", *, options=None, shards=(), encoding=None):
        if encoding is not None:
            encoder, spec = encoding.encoder(spec), encoding.stored_spec(spec)
            given = ({name: each[None] for name, each in sample.items()} for sample in samples)
            encoded = [encoder.encode(rows, str)[0] for rows in given]
            samples = [{name: each[0, ...] for name, each in rows.items()} for rows in encoded]
        size = shards[0] if shards else len(samples)
        testing.write_store(
            path, find_format(fmt), spec, samples, shard_n_samples=size, options=options or {}
        )
        return open_store(path)

    return write


@pytest.fixture
def make_store(store_writer, tmp_path):
    """Return a function that writes samples into a new store and opens it."""

    def make(*given, **options):
        path = tmp_path / f"store-{len(list(tmp_path.iterdir()))}"
        path.mkdir()
        return store_writer(path, *given, **options)

    return make
