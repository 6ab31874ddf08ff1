"""Small stores of any format, made without a dataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from iobench.loaders.opened_store import open_store
from iobench.registry import find_format
from iobench.stores.encoding import Encoding, merge_errors
from iobench.stores.finished_store import finish_store
from iobench.stores.manifest import Manifest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from iobench.samples import Sample, SampleSpec
    from iobench.stores.contract import Store


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
    container = find_format(fmt)
    encoder = None if encoding is None else encoding.encoder(spec)
    stored_spec = spec if encoding is None else encoding.stored_spec(spec)
    sizes = list(shards) or [len(samples)]
    infos: list[Any] = []
    done = 0
    for number, size in enumerate(sizes):
        writer = container.writer(
            path, stored_spec, shard=number, options=options, n_samples=sizes[0]
        )
        for sample in samples[done : done + size]:
            writer.append(sample if encoder is None else encoder.encode(sample, "a sample"))
        done += size
        infos.append(writer.close())
    manifest = Manifest(
        format=container.name,
        format_version=container.version,
        spec=stored_spec,
        shards=tuple(info.shard for info in infos),
        samples=range(len(samples)),
        options=options,
        lossy=merge_errors(*(info.lossy for info in infos)),
    )
    checksums = [one for info in infos for one in info.checksums]
    finish_store(path, container, manifest, checksums=checksums, n_samples=sizes[0])
    return open_store(path)
