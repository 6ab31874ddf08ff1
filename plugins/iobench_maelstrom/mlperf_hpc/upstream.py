"""How the reference implementations of MLPerf HPC load: `CamDataset`, and CosmoFlow's ``tf.data``.

mlcommons/hpc at 2c627d4: ``deepcam/src/deepCam/data`` and ``cosmoflow/data/cosmo.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from iobench.datasets import Baseline, MapStyle, stopwatch
from iobench.errors import OptionError
from iobench_maelstrom.radiation.tf_pipelines import batch_stream, import_tensorflow

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.datasets import Arrays, Locator, PublishedStep, Raw, SampleIndex
    from iobench.samples import Sample
    from iobench_maelstrom.mlperf_hpc.cosmoflow import CosmoFlow
    from iobench_maelstrom.mlperf_hpc.split_folders import SplitFolders, Where

BATCH_SIZE, READERS = 2, 4
"""``--local_batch_size`` and ``--max_inter_threads`` of ``run_training.sh``."""
CAM_SOURCE: Final = (
    "mlcommons/hpc, deepcam, cam_hdf5_dataset.py behind torch's DataLoader as run_training.sh runs "
    "it: batches of 2 and as many worker processes, each opens a file with h5py, reads it whole, "
    "scales it and hands it on transposed, not copied. Batches come in a random order"
)
COSMO_BATCH_SIZE, PREFETCHED = 4, 4
"""``batch_size`` and ``prefetch`` of ``configs/cosmo.yaml``."""
COSMO_SOURCE: Final = (
    "mlcommons/hpc, cosmoflow, data/cosmo.py with configs/cosmo.yaml, reimplemented: files in "
    "random order, TFRecordDataset one after the other, parsed, decoded and their logarithm taken "
    "by as many threads as TensorFlow sees fit, batches of 4, the rest dropped, 4 made ahead"
)


class CamFiles:
    """The reference's ``CamDataset``: a sample is what h5py reads of a file, and scaled.

    Parameters
    ----------
    shift, scale : array
        Of each channel.
    """

    name, title = "CamDataset", ""
    published: PublishedStep | None = None
    fused: tuple[str, ...] = ("read", "decode")

    def __init__(
        self, paths: Sequence[str], shift: NDArray[np.float32], scale: NDArray[np.float32]
    ) -> None:
        self._paths, self._channels = tuple(paths), list(range(len(shift)))
        self._shift, self._scale = shift.reshape(1, 1, -1), scale.reshape(1, 1, -1)

    def files(self, locator: Locator) -> list[Path]:
        """Nothing is looked for: the files were found by our own reader."""
        raise TypeError("the samples were found by another dataset")

    def samples(self, files: Sequence[Path], locator: Locator) -> SampleIndex:
        """Nothing is looked for: the samples were found by our own reader."""
        raise TypeError("the samples were found by another dataset")

    def read(self, where: Where) -> Any:
        """Return data and labels, which h5py reads and decodes at once."""
        import h5py

        with h5py.File(self._paths[where[0]], "r") as file:
            data = file["climate/data"][..., self._channels]
            return {"data": data, "label": file["climate/labels_0"][...].astype(np.int64)}

    def decode(self, raw: Raw, where: Where) -> Arrays:
        """Nothing is left to decode."""
        raise TypeError("read and decode are one step")

    def preprocess(self, arrays: Arrays, where: Where) -> Sample:
        """Return the sample."""
        data = self._scale * (arrays["data"] - self._shift)
        return {"data": np.transpose(data, (2, 0, 1)), "label": arrays["label"]}


def cam_loader(
    own: SplitFolders,
    index: SampleIndex,
    shift: NDArray[np.float32],
    scale: NDArray[np.float32],
    batch_size: int | None,
) -> Baseline:
    """Return the reference's loader over the samples of DeepCAM."""
    size = batch_size or BATCH_SIZE
    loading = MapStyle(CamFiles(own.paths, shift, scale), index, workers=min(READERS, size))
    return Baseline(loading, size, CAM_SOURCE, files=tuple(map(Path, own.paths)))


def universe_batches(
    own: CosmoFlow, files: Sequence[Path], index: SampleIndex, batch_size: int | None
) -> Baseline:
    """Return the reference's ``tf.data`` pipeline over CosmoFlow's TFRecord files.

    Raises
    ------
    OptionError
        If the files are HDF5, which the reference does not read, or fewer than a batch.
    MissingExtraError
        If TensorFlow cannot be imported.
    """
    size = batch_size or COSMO_BATCH_SIZE
    if own.is_hdf5:
        raise OptionError(
            f"--pipeline upstream: the reference reads TFRecords, not {own.layout}; leave it out, "
            "or choose --option layout=tfrecord-gzip"
        )
    if len(files) < size:
        raise OptionError(f"--batch-size {size}: {len(files)} samples are no batch; choose fewer")
    watch = stopwatch()
    tf = import_tensorflow("cosmoflow --pipeline upstream")
    imported_s = watch()
    compression = "GZIP" if own.layout == "tfrecord-gzip" else None
    paths, shape = [str(path) for path in files], index.spec["x"].shape

    def parse(example: Any) -> Any:
        features = {
            "x": tf.io.FixedLenFeature([], tf.string),
            "y": tf.io.FixedLenFeature([4], tf.float32),
        }
        found = tf.io.parse_single_example(example, features)
        counts = tf.reshape(tf.io.decode_raw(found["x"], tf.int16), shape)
        return {"x": tf.math.log(tf.cast(counts, tf.float32) + 1.0)}, {"y": found["y"]}

    def one_pass(epoch: int) -> Any:
        # The seed is ours, so that epochs differ and runs do not.
        listed = tf.data.Dataset.from_tensor_slices(paths).shuffle(len(paths), seed=epoch)
        examples = tf.data.TFRecordDataset(listed, compression_type=compression)
        parsed = examples.map(parse, num_parallel_calls=tf.data.AUTOTUNE)
        return parsed.batch(size, drop_remainder=True).prefetch(PREFETCHED)

    stream = batch_stream(one_pass, index, files, len(files) // size * size)
    setup_s = (("TensorFlow", imported_s),)
    return Baseline(stream, size, COSMO_SOURCE, files=tuple(files), setup_s=setup_s)
