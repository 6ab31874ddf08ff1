"""Small stores of any format, made without a dataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pytest

from iobench import testing
from iobench.loaders.ring.store_source import open_store
from iobench.registry import find_format

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from iobench.samples import Sample, SampleSpec
    from iobench.stores.contract import Store
    from iobench.stores.encoding import Encoding


@pytest.fixture(scope="session")
def store_writer() -> Callable[..., Store]:
    """Return the function that writes samples into a folder and opens the store; see below."""
    return write_store


@pytest.fixture
def make_store(tmp_path: Path) -> Callable[..., Store]:
    """Return a function that writes samples into a new store and opens it."""

    def make(
        spec: SampleSpec,
        samples: Sequence[Sample],
        fmt: str = "numpy",
        *,
        options: Mapping[str, str] | None = None,
        shards: Sequence[int] = (),
        encoding: Encoding | None = None,
    ) -> Store:
        path = tmp_path / f"store-{len(list(tmp_path.iterdir()))}"
        path.mkdir()
        return write_store(
            path, spec, samples, fmt, options=options or {}, shards=shards, encoding=encoding
        )

    return make


def write_store(
    path: Path,
    spec: SampleSpec,
    samples: Sequence[Sample],
    fmt: str,
    *,
    options: Mapping[str, str],
    shards: Sequence[int],
    encoding: Encoding | None,
) -> Store:
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
