"""The shards of a conversion as tasks of a dask.distributed cluster.

The plan, the claims and the journal are those of any conversion, so that a worker that dies loses
one shard, and ``iobench convert`` without a scheduler goes on where the cluster ended. Workers see
the same files under the same names, and have iobench installed.
"""

from __future__ import annotations

import pickle
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from iobench.datasets import no_progress
from iobench.errors import MissingExtraError, OptionError, StoreError
from iobench.stores import Tally
from iobench_converters.convert import ConversionRun

if TYPE_CHECKING:
    from iobench_converters.shards import Conversion

CONNECT_S = 30
N_RETRIES = 3
"""Workers that may die over one shard before the conversion ends."""


def write_on_dask(run: ConversionRun, scheduler: str) -> None:
    """Have the missing shards of a conversion written by the workers of a scheduler."""
    try:
        from distributed import Client, KilledWorker, as_completed
        from distributed.protocol.pickle import dumps  # also what pickle alone cannot
    except ImportError as error:
        raise MissingExtraError(
            "--scheduler needs dask.distributed: pip install 'iobench[cluster]'"
        ) from error
    missing = run.collect()
    if not missing:
        return
    try:
        client = Client(scheduler, timeout=CONNECT_S, set_as_default=False)
    except (OSError, ValueError) as error:
        raise OptionError(
            f"--scheduler {scheduler}: no dask scheduler answers there ({error})"
        ) from error
    with client, client.as_current():
        # A task of its own hands the plan out: workers that die do not take it with them.
        work = client.submit(bytes, dumps(run.conversion), pure=False)
        tasks = client.map(_write_one, missing, work=work, retries=N_RETRIES, pure=False)
        try:
            for task in as_completed(tasks):
                run.take(*task.result())
        except KilledWorker as error:
            raise StoreError(
                f"{run.path}: the workers of {scheduler} that tried one shard died; "
                "what is finished is kept, the same command continues"
            ) from error
        finally:
            client.cancel(tasks)


def _write_one(number: int, work: bytes) -> tuple[int, dict[str, Any]]:
    """Write one shard in a worker; return its number and where the time went."""
    tally = Tally()
    _joined(work).write_one(number, tally)
    return number, tally.to_dict()


@lru_cache(maxsize=1)
def _joined(work: bytes) -> ConversionRun:
    """Return this worker's part in a conversion: once, since it is as large as the index."""
    conversion: Conversion = pickle.loads(work)
    run = ConversionRun(conversion, tally=Tally(), progress=no_progress, notice=_say_nothing)
    if not run.join():
        raise StoreError(f"{conversion.request.path}: a worker does not find what was begun there")
    return run


def _say_nothing(line: str) -> None:
    """Show nothing."""
