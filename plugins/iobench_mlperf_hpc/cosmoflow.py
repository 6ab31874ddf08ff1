"""Dataset ``cosmoflow``: universes and their parameters, one file a sample, as MLPerf HPC has them.

Layout of mlcommons/hpc at 2c627d4, ``cosmoflow/prepare.py``: TFRecord files of one example, its
``x`` int16 (128, 128, 128, 4) and its ``y`` four float32, compressed with gzip from v1.0 on; plain
ones, of before, are known by their first bytes.
"""

from __future__ import annotations

import functools
import gzip
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from iobench.datasets import (
    Arrays,
    FileKey,
    Locator,
    PublishedStep,
    Raw,
    SampleIndex,
    Smooth,
    StandIn,
    inflated_file,
    range_file,
    read_whole_files,
)
from iobench.errors import FileFormatError, StoreError
from iobench.samples import Sample, SampleSpec, Variable
from iobench.stores import FeatureKind, frame_data, frame_example, parse_example
from iobench_mlperf_hpc.split_folders import SplitFolders, Where

if TYPE_CHECKING:
    from numpy.typing import NDArray

REDSHIFTS, PARAMETERS = 4, 4
SIDE, TINY_SIDE = 128, 16
MAX_SIDE: Final = 512  # of a simulation: nothing larger is believed of a file
GZIP_MAGIC: Final = b"\x1f\x8b"
OVERHEAD_NBYTES: Final = 1 << 10  # frame, names and lengths of an example, and more
COUNTS: Final = Smooth(0, 32, 0.72)
"""Of a stand-in: its files have the size of published ones, which are 1.7 TB in all."""


class CosmoFlow(SplitFolders):
    """Particle counts in a cube at four redshifts, and four parameters of the universe.

    ``x`` is ``log(count + 1)``, float32 (128, 128, 128, 4), rounded from the exact value: as there
    are 65,536 counts, by a table. The logarithms of TensorFlow, PyTorch and NumPy differ from it,
    and from each other, in the last bit of some. ``y`` is as in the file.
    """

    name = "cosmoflow"
    suffix = ".tfrecord"
    title = "Parameters of universes from their matter: regression, TFRecord (MLPerf HPC)"
    url = (
        "https://portal.nersc.gov/project/dasrepo/cosmoflow-benchmark/"
        "cosmoUniverse_2019_05_4parE_tf_v2"
    )
    n_published = (524_288, 65_536, 65_536)
    """Of MLPerf HPC v1.0 on; how large ``test`` is, is not published: as large as validation."""
    tiny_files, ordinary_files = (8, 4, 2), (64, 16, 8)
    synthesis_version = 4
    citation = "Mathuriya et al. 2018, https://arxiv.org/abs/1808.04728"
    published = PublishedStep(
        forward_ns=8_660_000,
        backward_ns=0,
        batch_size=1,
        source=(
            "MLPerf HPC v2.0 closed, NVIDIA, dgxa100_n64_pytorch: epoch_start to eval_start by its "
            "1024 steps, median of epochs but the first; 512 A100, one sample each, data staged "
            "before; the whole step with collectives and unmeasured I/O: at most"
        ),
        sample_nbytes=SIDE**3 * REDSHIFTS * 4 + PARAMETERS * 4,
    )

    def __init__(self, **options: str) -> None:
        super().__init__(**options)
        self.paths: tuple[str, ...] = ()
        self._shape: tuple[int, ...] = (MAX_SIDE,) * 3 + (REDSHIFTS,)

    def samples(self, files: Sequence[Path], locator: Locator) -> SampleIndex:
        self.paths = tuple(map(range_file, files))
        shape = self._features(self.read((0, 0))[0], self.paths[0])[0].shape
        side = round((math.prod(shape) / REDSHIFTS) ** (1 / 3))
        self._shape = (side, side, side, REDSHIFTS)
        if not side or shape != (math.prod(self._shape),):
            raise FileFormatError(
                f"{files[0]}: x has shape {shape}, expected a cube of {REDSHIFTS} redshifts; fetch "
                "the file again"
            )
        dims = ("x", "y", "z", "redshift")
        spec = SampleSpec((
            Variable("x", self._shape, "<f4", dims, "1"),
            Variable("y", (PARAMETERS,), "<f4", ("parameter",), "1", "target"),
        ))  # fmt: skip
        scale = {"formula": "log(x + 1)"}
        return self.index(spec, files, locator, normalisation=scale)

    def read(self, where: Where) -> Raw:
        path = self.paths[where[0]]
        (content,) = read_whole_files([path])
        if content is None:
            raise FileFormatError(f"{path}: is gone; fetch the file again")
        return [content]

    def decode(self, raw: Raw, where: Where, out: Arrays | None = None) -> Arrays:
        """Return counts and parameters, of what is inflated and checked."""
        path = self.paths[where[0]]
        counts, parameters = self._features(raw[0], path)
        is_cube = counts.dtype == np.int16 and counts.size == math.prod(self._shape)
        if not is_cube or parameters.shape != (PARAMETERS,):
            raise FileFormatError(
                f"{path}: x has {counts.size} numbers of {counts.dtype} and y {parameters.shape}, "
                f"expected {self._shape} of int16 and ({PARAMETERS},); fetch the file again"
            )
        return {"x": counts.reshape(self._shape), "y": parameters}

    def _features(self, content: memoryview, path: str) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the features of the only example of a file, inflated where it is gzip."""
        if bytes(content[:2]) == GZIP_MAGIC:
            limit = 2 * math.prod(self._shape) + OVERHEAD_NBYTES
            content = memoryview(inflated_file(content, limit, path))
        data = frame_data(content, path)
        try:
            features = parse_example(data)
            (counts,) = features["x"].values()
            return np.frombuffer(counts, dtype="<i2"), features["y"].floats()
        except (StoreError, KeyError, ValueError) as error:
            raise FileFormatError(
                f"{path}: is no example of one string x and floats y ({error}); fetch it again"
            ) from error

    def preprocess(self, arrays: Arrays, where: Where) -> Sample:
        """Return the logarithm of one more than the counts, and the parameters."""
        return {"x": _logarithms()[arrays["x"].view(np.uint16)], "y": arrays["y"]}

    # ---- the stand-in

    def stand_in_file(self, number: int) -> str:
        """Return a name as ``prepare.py`` gives: 64 cubes of each simulation."""
        simulation, cube = divmod(number, 64)
        return f"21688988_univ_ics_2019-03_a{10000668 + simulation}_{cube:03}{self.suffix}"

    def write(self, plan: StandIn, key: FileKey, path: Path) -> None:
        side = TINY_SIDE if plan.tiny else SIDE
        what = plan.seed, self.synthesis_version, key["name"]
        counts = COUNTS((side, side, side, REDSHIFTS), "<i2", what)
        parameters = Smooth(-1, 1)((PARAMETERS,), "<f4", what)
        example = [("x", FeatureKind.BYTES, counts), ("y", FeatureKind.FLOAT, parameters)]
        content = b"".join(map(bytes, frame_example(example)))
        path.write_bytes(gzip.compress(content, 6, mtime=0))  # TensorFlow's level


@functools.cache
def _logarithms() -> NDArray[np.float32]:
    """Return ``log(count + 1)`` by the 16 bits of the count; no count is negative."""
    counts = np.arange(1 << 16, dtype=np.uint16).view(np.int16).astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.log(counts + 1).astype(np.float32)
