"""How the examples of a TFRecord store hold their arrays: what readers have to be told of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from iobench.errors import StoreError
from iobench.files.atomic import storage_errors
from iobench.stores.example import FeatureKind, parse_example
from iobench.stores.tfrecord import scan_frames

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

__all__ = ["feature_kinds"]


def feature_kinds(files: Sequence[Path], names: Iterable[str]) -> dict[str, FeatureKind]:
    """Return which list each feature of a store's first example is.

    Parameters
    ----------
    files : sequence of Path
        The shards, no index.
    names : iterable of str
        Features that must be there.

    Raises
    ------
    StoreError
        If there is no sample, a feature is missing, or the first shard cannot be read.
    """
    for path in files:
        for offset, nbytes in scan_frames(path):
            with storage_errors(path), path.open("rb") as stream:
                stream.seek(offset)
                example = parse_example(memoryview(stream.read(nbytes)))
            missing = [name for name in names if name not in example]
            if missing:
                raise StoreError(f"{path}: its examples have no {missing[0]!r}; convert it again")
            return {name: feature.kind for name, feature in example.items()}
    raise StoreError(f"{files[0] if files else 'the store'}: holds no sample; convert it again")
