"""TFRecord: a sample is one record, a ``tf.train.Example`` with one feature per variable.

float32 is a ``float`` list, whole numbers up to 64 bits signed an ``int64`` list, everything else
(packed numbers too, and everything with ``encoding=bytes``) one string of little-endian bytes:
never a lossy cast.
``tf.io.parse_single_example`` with ``FixedLenFeature(shape, tf.float32)`` reads it. Beside each
``shard-00000.tfrecord`` lies ``shard-00000.idx``, offset and length of each record with its
framing as NVIDIA's ``tfrecord2idx`` writes them. A sample's extent is the example alone, so its
checksum in ``iobench.crc32c`` is the one the frame carries masked.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from iobench.errors import OptionError, SampleError, StoreError
from iobench.stores import (
    FRAME_NBYTES,
    HEADER_NBYTES,
    MAX_EXAMPLE_NBYTES,
    Encode,
    EncodedStack,
    ExampleLayout,
    ExtentStore,
    ExtentTable,
    Feature,
    FeatureKind,
    FieldLayout,
    Manifest,
    Shard,
    ShardPlan,
    ShardWriter,
    Store,
    crc32c_of_rows,
    encode_example,
    example_template,
    fill_table,
    frame_footers,
    frame_header,
    frame_pieces,
    open_file_size,
    parse_example,
    storage_errors,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from iobench.samples import SampleSpec, Variable

ENCODINGS: Final = ("float", "bytes")
SMALL_NBYTES = 1 << 16
FOOTER_NBYTES: Final = FRAME_NBYTES - HEADER_NBYTES
EXAMPLE_OVERHEAD_NBYTES = 64
"""More than tags and lengths of one feature take, its name apart."""
MAX_LINE_NBYTES = 40
"""Two numbers below 2**63, a space and a newline: a line of the index."""


@dataclass(frozen=True, slots=True)
class TFRecordFormat:
    """The format ``tfrecord``; option ``encoding`` is ``float`` (default) or ``bytes``."""

    name: str = "tfrecord"
    version: int = 1

    def open(self, path: Path, manifest: Manifest) -> Store:
        """Open a finished store; raise StoreError naming the shard that does not fit."""
        frames = [_read_index(path, shard) for shard in manifest.shards]
        offsets = [each[:, :1] + HEADER_NBYTES for each in frames]
        lengths = np.concatenate([np.empty((0, 2), np.int64), *frames])[:, 1:] - FRAME_NBYTES
        table = ExtentTable.of_shards(path, manifest.shards, offsets, lengths)
        return ExtentStore(path, manifest, table=table, decode=ExampleDecoder(manifest.spec))

    def check_options(self, options: Mapping[str, str]) -> None:
        """Raise OptionError for one that there is not."""
        _encoding(options)

    def encoder(self, spec: SampleSpec, options: Mapping[str, str]) -> Encode:
        """Return what frames the examples of samples side by side."""
        encoding = _encoding(options)
        overhead = sum(EXAMPLE_OVERHEAD_NBYTES + len(name.encode()) for name in spec.names)
        if spec.nbytes + overhead > MAX_EXAMPLE_NBYTES:
            raise SampleError(
                f"a sample of {spec.nbytes} bytes does not fit a TFRecord example of at most "
                f"{MAX_EXAMPLE_NBYTES}; choose the format numpy"
            )
        kinds = {variable.name: _feature_kind(variable, encoding) for variable in spec}
        if spec.nbytes <= SMALL_NBYTES and FeatureKind.INT64 not in kinds.values():
            return _small_encoder(spec, kinds)

        def encode(rows: Mapping[str, NDArray[Any]]) -> EncodedStack:
            buffers: list[Any] = []
            crcs, lengths = [], []
            for place in range(len(next(iter(rows.values())))):
                sample = [(name, kind, rows[name][place, ...]) for name, kind in kinds.items()]
                frame, crc = frame_pieces(encode_example(sample))
                buffers += frame
                crcs.append([crc])
                lengths.append(sum(map(len, frame)))
            checksums = np.array(crcs, dtype=np.uint32)
            return EncodedStack([buffers], checksums, [np.array(lengths, dtype=np.int64)])

        return encode

    def writer(
        self, path: Path, spec: SampleSpec, plan: ShardPlan, options: Mapping[str, str]
    ) -> TFRecordWriter:
        """Return a writer of a shard of the store at ``path``."""
        name = f"shard-{plan.number:05d}"
        return TFRecordWriter(path, plan, [f"{name}.tfrecord", f"{name}.idx"])


FORMAT: Final = TFRecordFormat()


class TFRecordWriter(ShardWriter):
    """Writes one shard and its index."""

    def finish(self) -> None:
        """Write the index."""
        starts = accumulate(self.lengths[0], initial=0)
        lines = [f"{at} {length}\n" for at, length in zip(starts, self.lengths[0], strict=False)]
        self.files[1].write("".join(lines).encode())


def _small_encoder(spec: SampleSpec, kinds: Mapping[str, FeatureKind]) -> Encode:
    """Return what frames small samples, of which all but the numbers is the same."""
    example, offsets = example_template([(n, spec[n].nbytes, kind) for n, kind in kinds.items()])
    around = frame_header(len(example)) + example + bytes(FOOTER_NBYTES)
    fields = {f"v{number}": name for number, name in enumerate(spec.names)}
    dtype = np.dtype(
        {
            "names": list(fields),
            "formats": [(variable.dtype, variable.shape) for variable in spec],
            "offsets": [HEADER_NBYTES + offsets[name] for name in spec.names],
            "itemsize": len(around),
        }
    )

    def encode(rows: Mapping[str, NDArray[Any]]) -> EncodedStack:
        frames = fill_table(rows, dtype, fields, around)
        crcs = crc32c_of_rows(frames, HEADER_NBYTES, -FOOTER_NBYTES)
        frames[:, -FOOTER_NBYTES:] = frame_footers(crcs)
        lengths = np.full(len(frames), frames.shape[1], dtype=np.int64)
        return EncodedStack([[frames.reshape(-1).data]], crcs[:, None], [lengths])

    return encode


class ExampleDecoder:
    """Turns the example of one sample into its arrays, views of the record where it can."""

    def __init__(self, spec: SampleSpec) -> None:
        self.spec = spec
        self._layout: ExampleLayout | None = None

    def __reduce__(self) -> tuple[type[ExampleDecoder], tuple[SampleSpec]]:
        return ExampleDecoder, (self.spec,)

    def __call__(self, raw: Sequence[memoryview]) -> dict[str, NDArray[Any]]:
        """Return the arrays; raise StoreError naming the one that is not as the spec says."""
        record = raw[0]
        if self._layout is not None and self._layout.fits(record):
            return self._layout.arrays(record)
        features = parse_example(record)
        arrays = {variable.name: _decode(variable, features) for variable in self.spec}
        if self._layout is None:
            self._layout = ExampleLayout(record, arrays)
        return arrays

    def fields(self, raw: Sequence[memoryview]) -> FieldLayout | None:
        """Return where the arrays lie in records with the tags of this one."""
        arrays = self(raw)
        features = parse_example(raw[0])
        varints = [
            name
            for name, array in arrays.items()
            if features[name].kind is FeatureKind.INT64 and array.nbytes
        ]
        for name in varints:
            packed = features[name].packed()
            if packed is None:
                return None
            arrays[name] = np.frombuffer(packed, dtype=np.uint8)
        return FieldLayout.of_views(raw, arrays, is_tagged=True, varints=varints)


def _decode(variable: Variable, features: Mapping[str, Feature]) -> NDArray[Any]:
    name, dtype = variable.name, np.dtype(variable.dtype)
    feature = features.get(name)
    if feature is None:
        raise StoreError(f"a record has no feature {name!r}, only {sorted(features)[:5]}")
    if feature.kind is FeatureKind.FLOAT and variable.dtype == "<f4":
        array: NDArray[Any] = feature.floats()
    elif feature.kind is FeatureKind.INT64 and dtype.kind in "biu":
        numbers = feature.int64s()
        array = numbers.astype(dtype)
        if not np.array_equal(array.astype(np.int64), numbers):
            raise StoreError(
                f"feature {name!r} of a record holds numbers that do not fit {dtype.str}"
            )
    elif feature.kind is FeatureKind.BYTES:
        values = feature.values()
        if len(values) != 1 or len(values[0]) != variable.nbytes:
            raise StoreError(
                f"feature {name!r} of a record is not one string of {variable.nbytes} bytes"
            )
        array = np.frombuffer(values[0], dtype=dtype)
    else:
        raise StoreError(
            f"feature {name!r} of a record is a {feature.kind.name.lower()} list, which cannot "
            f"hold {variable.dtype}"
        )
    if array.nbytes != variable.nbytes:
        raise StoreError(
            f"feature {name!r} of a record has {array.size} values, expected shape {variable.shape}"
        )
    return array.reshape(variable.shape)


def _read_index(path: Path, shard: Shard) -> NDArray[np.int64]:
    """Return (offset, length) of each frame after checking that they tile the shard exactly."""
    if len(shard.files) != 2:
        raise StoreError(f"{path}: a TFRecord shard is two files, its manifest lists others")
    data_file, index_file = shard.files
    nbytes = open_file_size(path / data_file.name, expected=data_file.nbytes)
    open_file_size(path / index_file.name, expected=index_file.nbytes)
    if index_file.nbytes > shard.n_samples * MAX_LINE_NBYTES:
        raise StoreError(
            f"{path / index_file.name}: {index_file.nbytes} bytes are too many for "
            f"{shard.n_samples} records; convert to a new folder"
        )
    with storage_errors(path / index_file.name):
        text = (path / index_file.name).read_bytes()
    try:
        frames = np.array(text.split(), dtype=np.int64).reshape(-1, 2)
    except (ValueError, OverflowError):
        frames = np.empty((0, 2), dtype=np.int64)
    ends = frames.sum(axis=1)
    tiles = np.array_equal(frames[1:, 0], ends[:-1]) and (frames[:, 1] > FRAME_NBYTES).all()
    spans = len(frames) and frames[0, 0] == 0 and ends[-1] == nbytes and frames.max() <= nbytes
    if len(frames) != shard.n_samples or not tiles or not spans:
        raise StoreError(
            f"{path / index_file.name}: does not describe the {shard.n_samples} records of "
            f"{data_file.name}; convert to a new folder"
        )
    return frames


def _feature_kind(variable: Variable, encoding: str) -> FeatureKind:
    dtype = np.dtype(variable.dtype)
    if encoding == "float" and variable.dtype == "<f4":
        return FeatureKind.FLOAT
    # Packed numbers are no integers to a reader; as such negative ones would take ten bytes each.
    is_whole = dtype.kind in "biu" and np.can_cast(dtype, np.int64) and variable.packed is None
    if encoding == "float" and is_whole:
        return FeatureKind.INT64
    return FeatureKind.BYTES


def _encoding(options: Mapping[str, str]) -> str:
    unknown = sorted(set(options) - {"encoding"})
    encoding = options.get("encoding", "float")
    if unknown or encoding not in ENCODINGS:
        wrong = unknown[0] if unknown else f"encoding={encoding}"
        raise OptionError(f"format tfrecord: {wrong!r} is no option; there is encoding=float|bytes")
    return encoding
