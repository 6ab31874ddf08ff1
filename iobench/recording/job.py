"""A script's run: which training process of which job this one is, and what ``run.json`` says."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from iobench.command_words import KEEP_COMMAND, drop_values
from iobench.masking import mask_words
from iobench.recording.this_process import boot_id, machine

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

RUN_TOKEN: Final = "IOBENCH_RUN_TOKEN"
"""Set by who starts a run of several processes: the same for all of them, new for each run."""
KERNEL_MODULE: Final = "ipykernel_launcher"
"""What Jupyter starts for a notebook: nobody typed it, and its arguments are temporary files."""
NOTEBOOK_NAME: Final = "JPY_SESSION_NAME"  # set by Jupyter to the notebook's path


class JobRank(msgspec.Struct, frozen=True):
    """One training process of a job; 0 of 1 where nobody started several."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    token: str = ""  # the same for all processes of one job step and of no other; "" for one


def find_job(environment: Mapping[str, str] = os.environ) -> JobRank:
    """Return what the environment says of this process, else torch's process group."""
    result = (
        _torchrun(environment)
        or _mpi(environment)
        or _slurm(environment)
        or _lightning(environment)
        or _process_group()
        or JobRank()
    )
    token = environment.get(RUN_TOKEN)
    return msgspec.structs.replace(result, token=token) if token else result


def _number(environment: Mapping[str, str], *names: str) -> int | None:
    for name in names:
        text = environment.get(name, "")
        if text.isdecimal():
            return int(text)
    return None


def _torchrun(environment: Mapping[str, str]) -> JobRank | None:
    rank, size = _number(environment, "RANK"), _number(environment, "WORLD_SIZE")
    if rank is None or size is None:
        return None
    # "none" unless the user names it: then the address, and on one machine the agent, tell.
    parts = [environment.get(name, "") for name in ("TORCHELASTIC_RUN_ID", "MASTER_ADDR")]
    parts += [environment.get("MASTER_PORT", ""), environment.get("SLURM_JOB_ID", "")]
    if environment.get("GROUP_WORLD_SIZE", "1") == "1":
        parts += [boot_id(), str(os.getppid())]
    local = _number(environment, "LOCAL_RANK") or 0
    return JobRank(rank, size, local, "torch:" + ":".join(parts))


def _mpi(environment: Mapping[str, str]) -> JobRank | None:
    rank = _number(environment, "OMPI_COMM_WORLD_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK")
    size = _number(environment, "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE")
    if rank is None or size is None:
        return None
    local = _number(environment, "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID") or 0
    names = ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMI_JOBID", "SLURM_JOB_ID")
    ids = [environment[name] for name in names if environment.get(name)]
    return JobRank(rank, size, local, "mpi:" + ":".join(ids or [str(os.getppid())]))


def _slurm(environment: Mapping[str, str]) -> JobRank | None:
    # The batch script itself has a PROCID as well, but no step.
    rank, step = _number(environment, "SLURM_PROCID"), environment.get("SLURM_STEP_ID")
    size = _number(environment, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
    if rank is None or size is None or step is None:
        return None
    local = _number(environment, "SLURM_LOCALID") or 0
    return JobRank(rank, size, local, f"srun:{environment.get('SLURM_JOB_ID')}.{step}")


def _lightning(environment: Mapping[str, str]) -> JobRank | None:
    """Return what Lightning sets for all but the first of its processes, on one machine."""
    local, size = _number(environment, "LOCAL_RANK"), _number(environment, "WORLD_SIZE")
    if local is None or size is None or environment.get("NODE_RANK", "0") != "0":
        return None
    port = environment.get("MASTER_PORT", "")
    return JobRank(local, size, local, f"lightning:{boot_id()}:{port}")


def _process_group() -> JobRank | None:
    distributed = sys.modules.get("torch.distributed")
    try:
        if distributed is None or not distributed.is_initialized():
            return None
        return JobRank(distributed.get_rank(), distributed.get_world_size())
    except (AttributeError, RuntimeError, ValueError):
        return None  # torch was built without it, or is being imported


def script_document(
    command: Sequence[str],
    job: JobRank,
    *,
    detail: str,
    digests: bool = False,
    batches_per_step: int | None = None,
    name: str | None = None,
) -> dict[str, Any]:
    """Return what ``run.json`` says of the run of a user's script."""
    return {
        "kind": "script",
        "name": name,
        "command": shlex.join(command),
        "job": job.token,
        "world_size": job.world_size,
        "detail": detail,
        "digests": digests,
        "batches_per_step": batches_per_step,
        "machine": machine(),
    }


def command_line(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Return how this process was started, as it may be kept; of a notebook, its name alone."""
    words = [str(part) for part in getattr(sys, "orig_argv", sys.argv)]
    if KERNEL_MODULE in words:
        return ["notebook", *filter(None, [Path(environ.get(NOTEBOOK_NAME, "")).name])]
    return words_to_keep(words, keep_values=environ.get(KEEP_COMMAND) == "1")


def words_to_keep(command: Sequence[str], *, keep_values: bool) -> list[str]:
    """Return what may be kept of a command: no credentials, and no values unless asked."""
    return mask_words(command if keep_values else drop_values(command))
