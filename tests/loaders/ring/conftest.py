"""Small stores of any format, made without a dataset."""

from __future__ import annotations

import pytest

from iobench import testing
from iobench.loaders.ring.store_source import open_store
from iobench.registry import find_format


@pytest.fixture(scope="session")
def store_writer():
    """Return the function that writes samples into a folder and opens the store; see below."""
    return write_store


@pytest.fixture
def make_store(tmp_path):
    """Return a function that writes samples into a new store and opens it."""

    def make(spec, samples, fmt="numpy", *, options=None, shards=(), encoding=None):
        path = tmp_path / f"store-{len(list(tmp_path.iterdir()))}"
        path.mkdir()
        return write_store(
            path, spec, samples, fmt, options=options or {}, shards=shards, encoding=encoding
        )

    return make


def write_store(path, spec, samples, fmt, *, options, shards, encoding):
    if encoding is not None:
        encoder, spec = encoding.encoder(spec), encoding.stored_spec(spec)
        given = ({name: each[None] for name, each in sample.items()} for sample in samples)
        encoded = [encoder.encode(rows, str)[0] for rows in given]
        samples = [{name: each[0, ...] for name, each in rows.items()} for rows in encoded]
    size = shards[0] if shards else len(samples)
    testing.write_store(
        path, find_format(fmt), spec, samples, shard_n_samples=size, options=options
    )
    return open_store(path)
