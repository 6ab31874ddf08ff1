"""Format ``bins``: the arrays of sample after sample, nothing between them, a ``.bin`` a shard."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.errors import OptionError
from iobench.stores import (
    EncodedStack,
    ExtentStore,
    ExtentTable,
    ShardWriter,
    octets,
    open_file_size,
    row_checksums,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from iobench.samples import SampleSpec
    from iobench.stores import Encode, Manifest, ShardPlan, Store


@dataclass(frozen=True, slots=True)
class Decode:
    """Bytes of a sample's extents to its arrays, without a copy."""

    spec: SampleSpec

    def __call__(self, raw: Sequence[memoryview]) -> dict[str, NDArray[Any]]:
        """Return one array for each extent."""
        return {
            variable.name: np.frombuffer(piece, variable.dtype).reshape(variable.shape)
            for variable, piece in zip(self.spec, raw, strict=True)
        }


class Bins:
    """The format, as the entry point names it."""

    name = "bins"
    version = 1

    def open(self, path: Path, manifest: Manifest) -> Store:
        """Open a finished store: where a sample is follows from its number."""
        spec = manifest.spec
        lengths = np.array([variable.nbytes for variable in spec])
        starts = np.cumsum(lengths) - lengths
        offsets = []
        for shard in manifest.shards:
            open_file_size(path / shard.files[0].name, expected=shard.n_samples * spec.nbytes)
            offsets.append(np.arange(shard.n_samples)[:, None] * spec.nbytes + starts)
        table = ExtentTable.of_shards(
            path, manifest.shards, offsets, lengths, file_numbers=[0] * len(lengths)
        )
        return ExtentStore(path, manifest, table=table, decode=Decode(spec))

    def encoder(self, spec: SampleSpec, options: Mapping[str, str]) -> Encode:
        """Return what encodes samples side by side: bytes of the file, checksums of extents."""
        if options:
            raise OptionError(f"bins: unknown option {min(options)!r}, it has none")

        def encode(rows: Mapping[str, NDArray[Any]]) -> EncodedStack:
            arrays = [octets(rows[variable.name]) for variable in spec]
            checksums = np.stack([row_checksums(each) for each in arrays], axis=1)
            return EncodedStack([[np.concatenate(arrays, axis=1).reshape(-1).data]], checksums)

        return encode

    def writer(
        self, path: Path, spec: SampleSpec, plan: ShardPlan, options: Mapping[str, str]
    ) -> ShardWriter:
        """Return the writer of one shard; its file appears when it is closed."""
        return ShardWriter(path, plan, [f"{plan.number:05d}.bin"])


FORMAT = Bins()
