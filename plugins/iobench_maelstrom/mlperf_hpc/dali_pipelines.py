"""How NVIDIA's results of MLPerf HPC v2.0 load: DALI's readers over files prepared for them.

mlcommons/hpc_results_v2.0, ``NVIDIA/benchmarks``: ``deepcam/implementations/pytorch/src`` has
``utils/convert_hdf52npy.py`` and ``deepCam/data/cam_numpy_dali_dataset.py``, ``cosmoflow/
implementations/pytorch/data`` has ``dali_core.py`` and ``dali_tfr_gzip.py``, which inflates files
as it stages them. Here all of it runs on the CPU.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from iobench.datasets import Baseline, Stream, stopwatch
from iobench.errors import MissingExtraError, OptionError, StorageError
from iobench.stores import free_nbytes
from iobench_maelstrom.ens10.kept_folder import kept_folder

if TYPE_CHECKING:
    from iobench.datasets import Locator, SampleIndex
    from iobench.samples import Sample
    from iobench_maelstrom.mlperf_hpc.cosmoflow import CosmoFlow
    from iobench_maelstrom.mlperf_hpc.deepcam import DeepCam
    from iobench_maelstrom.mlperf_hpc.split_folders import SplitFolders

THREADS: Final = 4
QUEUED: Final = 2
MAKES: Final = "read+decode+preprocess+collate"
CAM_SOURCE: Final = (
    "NVIDIA's DeepCAM of MLPerf HPC v2.0: DALI's NumPy reader over data and labels as .npy files, "
    "normalised, cast and transposed by DALI, here on the CPU; files in random order, the rest of "
    "an epoch dropped. Making the .npy files is set-up"
)
COSMO_SOURCE: Final = (
    "NVIDIA's CosmoFlow of MLPerf HPC v2.0: DALI's TFRecord reader over inflated files, their "
    "bytes taken as int16; the logarithm, which theirs takes on the GPU in the step, is DALI's as "
    "well, here on the CPU; files in random order. Inflating and indexing the files is set-up"
)


def cam_arrays(
    own: DeepCam, index: SampleIndex, locator: Locator, batch_size: int | None
) -> Baseline:
    """Return NVIDIA's pipeline over DeepCAM, its ``.npy`` files written if they are new.

    Raises
    ------
    MissingExtraError
        If DALI cannot be imported.
    """
    dali = _Dali("deepcam")
    watch = stopwatch()

    def write(folder: Path) -> None:
        for where in index.where:
            arrays, name = own.decode(own.read(where), where), index.coordinate[where[0]]
            np.save(folder / f"{name}.npy", arrays["data"])
            np.save(folder / f"{name.replace('data-', 'label-')}.npy", arrays["labels_0"])

    nbytes = sum(Path(path).stat().st_size for path in own.paths)
    folder = _prepared("deepcam-npy", own, nbytes, locator, write)
    written_s = watch()
    names = [f"{name}.npy" for name in index.coordinate]
    low, divisor = (each.reshape(1, 1, -1) for each in own.extremes)

    def graph(seed: int) -> tuple[Any, Any]:
        def read(files: list[str]) -> Any:
            return dali.fn.readers.numpy(
                file_root=str(folder), files=files, shuffle_after_epoch=True, seed=seed,
                pad_last_batch=True, prefetch_queue_depth=QUEUED,
            )  # fmt: skip

        data = read(names)
        label = read([name.replace("data-", "label-") for name in names])
        data = dali.fn.normalize(data, mean=low, stddev=divisor)
        label = dali.fn.cast(label, dtype=dali.types.DALIDataType.INT64)
        return dali.fn.transpose(data, perm=[2, 0, 1]), label

    size = min(batch_size or 2, len(index))
    setup_s = ((".npy files", written_s),)
    files = tuple(sorted(folder.glob("*.npy")))
    return Baseline(dali.stream(graph, index, size), size, CAM_SOURCE, files, setup_s)


def universe_examples(
    own: CosmoFlow, files: Sequence[Path], index: SampleIndex, locator: Locator,
    batch_size: int | None,
) -> Baseline:  # fmt: skip
    """Return NVIDIA's pipeline over CosmoFlow's TFRecords, inflated and indexed if that is new.

    Raises
    ------
    OptionError
        If the files are HDF5.
    MissingExtraError
        If DALI cannot be imported.
    """
    if own.is_hdf5:
        raise OptionError(
            f"--pipeline upstream: NVIDIA's reads TFRecords, not {own.layout}; choose --option "
            "layout=tfrecord-gzip"
        )
    dali = _Dali("cosmoflow")
    watch = stopwatch()

    def write(folder: Path) -> None:
        for where, file in zip(index.where, files, strict=True):
            content = own.inflated(own.read(where), where)
            (folder / file.name).write_bytes(content)
            (folder / f"{file.name}.idx").write_text(f"0 {len(content)}\n")

    nbytes = len(files) * index.spec["x"].nbytes // 2
    folder = _prepared(f"{own.stand_in_name}-inflated", own, nbytes, locator, write)
    written_s = watch()
    paths = [str(folder / file.name) for file in files]

    def graph(seed: int) -> tuple[Any, Any]:
        found = dali.fn.readers.tfrecord(
            path=paths,
            index_path=[f"{path}.idx" for path in paths],
            features={
                "x": dali.tfrecord.FixedLenFeature((), dali.tfrecord.string, ""),
                "y": dali.tfrecord.FixedLenFeature((4,), dali.tfrecord.float32, 0.0),
            },
            random_shuffle=True, seed=seed, pad_last_batch=True, prefetch_queue_depth=QUEUED,
        )  # fmt: skip
        counts = dali.fn.reinterpret(
            found["x"], dtype=dali.types.DALIDataType.INT16, shape=index.spec["x"].shape
        )
        values = dali.fn.cast(counts, dtype=dali.types.DALIDataType.FLOAT)
        return dali.math.log(values + 1.0), found["y"]

    size = min(batch_size or 1, len(index))
    setup_s = (("inflating", written_s),)
    read = tuple(map(Path, paths))
    return Baseline(dali.stream(graph, index, size), size, COSMO_SOURCE, read, setup_s)


def _prepared(
    name: str, own: SplitFolders, nbytes: int, locator: Locator, write: Callable[[Path], None]
) -> Path:
    """Return the folder of files made of the published ones; written if they have changed.

    Raises
    ------
    StorageError
        If there is no room.
    """
    found = [(path, Path(path).stat()) for path in own.paths]
    about = {"files": [[path, each.st_size, each.st_mtime_ns] for path, each in found]}
    what = f"prepared files for DALI ({name})"

    def write_if_it_fits(folder: Path) -> None:
        if (free := free_nbytes(folder)) is not None and nbytes > free:
            raise StorageError(
                f"{locator.cache_dir}: {what} need {nbytes / 1e9:.1f} GB, {free / 1e9:.1f} GB are "
                "free; make room, give --store-dir, or choose a part with --option split="
            )
        write(folder)

    return kept_folder(locator.cache_dir, name, about, write_if_it_fits, what)[0]


class _Dali:
    """DALI's modules, and batches of a pipeline of it.

    Raises
    ------
    MissingExtraError
        If it cannot be imported.
    """

    def __init__(self, who: str) -> None:
        try:
            self.fn, self.types, self.math, self.tfrecord, pipeline = (
                importlib.import_module(f"nvidia.dali.{name}")
                for name in ("fn", "types", "math", "tfrecord", "pipeline")
            )
        except ImportError as error:
            raise MissingExtraError(
                f"{who} --option reference=nvidia --pipeline upstream needs DALI: pip install "
                "'iobench[dali]'"
            ) from error
        self._new: Callable[..., Any] = pipeline.Pipeline

    def stream(
        self, graph: Callable[[int], tuple[Any, Any]], index: SampleIndex, size: int
    ) -> Stream:
        """Return the whole batches of each epoch, made by threads of DALI's."""
        n_batches, rest = divmod(len(index), size)
        built: list[Any] = []

        def batches(epoch: int) -> Iterator[Sample]:
            if not built:  # with the first pass: its threads are none that a fork may meet
                made = self._new(
                    batch_size=size, num_threads=THREADS, device_id=None, seed=epoch + 1,
                    prefetch_queue_depth=QUEUED,
                )  # fmt: skip
                with made:
                    made.set_outputs(*graph(epoch + 1))
                made.build()
                built.append(made)
            return handed_on(built[0])

        def handed_on(pipeline: Any) -> Iterator[Sample]:
            for _ in range(n_batches):
                outputs = [np.array(each.as_array()) for each in pipeline.run()]
                yield dict(zip(index.spec.names, outputs, strict=True))
            if rest:
                pipeline.run()  # the padded one, which is dropped

        return Stream(
            spec=index.spec,
            items=batches,
            stages=(),
            n_samples=lambda batch: len(next(iter(batch.values()))),
            n_samples_all=n_batches * size,
            makes=MAKES,
            batched=True,
            ahead=0,
        )
