"""Format ``bins``: the arrays of sample after sample, nothing between them, a ``.bin`` a shard."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.errors import OptionError
from iobench.stores import (
    ExtentStore,
    ExtentTable,
    ShardWriter,
    crc32c,
    open_file_size,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from iobench.samples import Sample, SampleSpec
    from iobench.stores import Manifest, Store


class BinsWriter(ShardWriter):
    """Writes one shard; the file appears when it is closed."""

    def write_sample(self, sample: Sample) -> None:
        """Write the arrays of one sample, in the order of the spec."""
        pieces = [sample[variable.name].tobytes() for variable in self.spec]
        self.files[0].write(*pieces)
        self.checksums.extend(map(crc32c, pieces))


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
        counts = [shard.n_samples for shard in manifest.shards]
        files = tuple(path / shard.files[0].name for shard in manifest.shards)
        for file, count in zip(files, counts, strict=True):
            open_file_size(file, expected=count * spec.nbytes)
        file_of = np.repeat(np.arange(len(files), dtype="u4"), counts)
        in_shard = np.concatenate([np.arange(count) for count in counts])
        shape = (len(in_shard), len(lengths))
        table = ExtentTable(
            files=files,
            file=np.broadcast_to(file_of[:, None], shape),
            offset=in_shard[:, None] * spec.nbytes + starts,
            length=np.broadcast_to(lengths, shape),
        )
        return ExtentStore(path, manifest, table=table, decode=Decode(spec))

    def writer(
        self,
        path: Path,
        spec: SampleSpec,
        *,
        shard: int,
        options: Mapping[str, str],
        n_samples: int | None = None,
    ) -> BinsWriter:
        """Return the writer of one shard."""
        if options:
            raise OptionError(f"bins: unknown option {min(options)!r}, it has none")
        return BinsWriter(path, spec, shard=shard, files=[f"{shard:05d}.bin"])


FORMAT = Bins()
