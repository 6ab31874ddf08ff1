"""The shards of a conversion as tasks of a dask.distributed cluster.

The plan and the journal are those of any conversion, and this process holds the lock, so that a
worker that dies loses one shard, and ``iobench convert`` without a scheduler goes on where the
cluster ended. Workers see the same files under the same names, and have iobench installed.
"""

from __future__ import annotations

import pickle
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from iobench.errors import MissingExtraError, OptionError, StoreError
from iobench_converters.shards import ConversionRun

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iobench.stores import ConversionPlan

CONNECT_S = 30
N_RETRIES = 3
"""Workers that may die over one shard before the conversion ends."""


def write_on_dask(run: ConversionRun, missing: Sequence[int], scheduler: str) -> None:
    """Have missing shards of a conversion written by the workers of a scheduler."""
    try:
        from distributed import Client, KilledWorker, as_completed
        from distributed.protocol.pickle import dumps  # also what pickle alone cannot
    except ImportError as error:
        raise MissingExtraError("--scheduler needs dask.distributed", extra="cluster") from error
    try:
        client = Client(scheduler, timeout=CONNECT_S, set_as_default=False)
    except (OSError, ValueError) as error:
        raise OptionError(
            f"--scheduler {scheduler}: no dask scheduler answers there ({error})"
        ) from error
    with client, client.as_current():
        # A task of its own hands the plan out: workers that die do not take it with them.
        work = client.submit(bytes, dumps(run.plan), pure=False)
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
    run = ConversionRun(_loaded(work))
    if not run.join():
        raise StoreError(f"{run.path}: a worker does not find what was begun there")
    if missing := run.collect([number]):
        run.write(missing)
    return number, run.tally.to_dict()


@lru_cache(maxsize=1)
def _loaded(work: bytes) -> ConversionPlan:
    """Return what this worker converts: once, since it is as large as the index."""
    plan: ConversionPlan = pickle.loads(work)
    return plan
