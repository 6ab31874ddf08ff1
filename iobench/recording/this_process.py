"""What the system says of this machine and this process: names, versions, memory."""

from __future__ import annotations

import contextlib
import os
import platform
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from iobench.cpus import available_cpus

if TYPE_CHECKING:
    from collections.abc import Mapping

VERSIONED: Final = (
    "torch", "torchdata", "torchvision", "lightning", "pytorch_lightning", "transformers",
    "accelerate", "deepspeed", "horovod", "tensorflow", "keras", "jax", "jaxlib", "flax", "grain",
    "nvidia.dali", "numpy", "scipy", "pandas", "xarray", "dask", "distributed", "zarr", "numcodecs",
    "h5py", "h5netcdf", "netCDF4", "pyarrow", "eccodes", "gribapi", "cfgrib", "earthkit.data",
    "climetlab", "anemoi.datasets", "anemoi.training", "anemoi.models", "fsspec", "s3fs", "gcsfs",
    "obstore", "kerchunk", "virtualizarr", "icechunk", "webdataset", "streaming", "litdata",
    "xbatcher", "mpi4py", "PIL",
)  # fmt: skip
"""What reads, decodes, computes or trains, by the names that it is imported by."""
THREAD_VARIABLES: Final = (
    "OMP_NUM_THREADS", "OMP_THREAD_LIMIT", "OMP_PROC_BIND", "OMP_PLACES", "OMP_WAIT_POLICY",
    "KMP_AFFINITY", "GOMP_CPU_AFFINITY", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS",
    "BLIS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS", "NUMEXPR_NUM_THREADS", "NUMEXPR_MAX_THREADS",
    "NUMBA_NUM_THREADS", "BLOSC_NTHREADS", "RAYON_NUM_THREADS", "POLARS_MAX_THREADS",
    "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "DASK_NUM_WORKERS", "DASK_SCHEDULER",
    "SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE", "SLURM_CPU_BIND", "SLURM_NTASKS_PER_NODE",
)  # fmt: skip


def host_name() -> str:
    """Return the name of this machine on the network, as span files are named after it."""
    return platform.node() or "unknown"


def name_in_files(host: str) -> str:
    """Return the name of a host as names of files have it."""
    return "".join(sign if sign.isalnum() or sign in "._" else "_" for sign in host)


def cpu_model() -> str:
    """Return what the processors of this machine are called; ``""`` where nothing tells."""
    try:
        text = Path("/proc/cpuinfo").read_text("utf-8", "replace")
    except OSError:
        return platform.processor()
    lines = (line.partition(":") for line in text.partition("\n\n")[0].splitlines())
    names = {name.strip(): value.strip() for name, _, value in lines}
    # Arm's kernels have numbers alone.
    numbers = " ".join(names.get(f"CPU {what}", "") for what in ("implementer", "part"))
    return names.get("model name") or numbers.strip() or platform.machine()


def machine() -> dict[str, Any]:
    """Return what ``run.json`` says of this machine."""
    return {
        "host": host_name(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "cpus": available_cpus(),
        "cpu_model": cpu_model(),
    }


def thread_settings(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables that say how many threads libraries use."""
    return {name: environ[name] for name in THREAD_VARIABLES if name in environ}


def package_versions() -> dict[str, str]:
    """Return the versions of what this process has imported and that matters to a training."""
    versions = {}
    for name in VERSIONED:
        with contextlib.suppress(ImportError):  # of a module that imports on demand
            version = getattr(sys.modules.get(name), "__version__", None)
            if isinstance(version, str):
                versions[name] = version
    return versions


def boot_id() -> str:
    """Return what tells one monotonic clock from another; ``""`` where nothing does."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return ""
    moved = ""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/timens_offsets").read_text("ascii").splitlines():
            clock, *offset = line.split()
            if clock == "monotonic" and any(int(part) for part in offset):
                moved = "+" + ".".join(offset)
    return boot + moved
