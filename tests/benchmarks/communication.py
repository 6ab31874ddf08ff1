"""What recording costs a collective operation: python tests/benchmarks/communication.py.

One process alone in a gloo group, so that an operation is as short as it can be. Arms take turns:
torch as it is, with the hooks and no recording, with the hooks and one. What counts is CPU time of
the calling thread for each operation, the least of many rounds, less that of torch as it is.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import iobench
from iobench.torch import communication

ROUNDS, CALLS, STEPS = 40, 500, 40
ARMS = ("torch", "hooks", "recorded")


def spent_us(call: Callable[[], Any], n_calls: int) -> float:
    began = time.thread_time_ns()
    for _ in range(n_calls):
        call()
    return (time.thread_time_ns() - began) / n_calls / 1000


def waited_for(tensor: torch.Tensor) -> None:
    dist.all_reduce(tensor, async_op=True).wait()


def main() -> None:
    argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0]).parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    tensor, x = torch.ones(1000), torch.ones(4, 8)
    calls: dict[str, tuple[Callable[[], Any], int]] = {
        "all_reduce": (lambda: dist.all_reduce(tensor), CALLS),
        "all_reduce begun, waited for": (lambda: waited_for(tensor), CALLS),
        "barrier": (dist.barrier, CALLS),
    }
    models: dict[str, Any] = {}
    least: dict[tuple[str, str], float] = {}
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(ROUNDS):
            for arm in ARMS:
                if arm != "torch":
                    communication.install()
                run = Path(folder) / f"{turn}"
                with iobench.record(run) if arm == "recorded" else nullcontext():
                    model = torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(4)])
                    models[arm] = torch.nn.parallel.DistributedDataParallel(model)
                    step = (lambda arm=arm: models[arm](x).sum().backward(), STEPS)
                    for name, (call, n_calls) in {**calls, "a step of DDP": step}.items():
                        call()
                        took = spent_us(call, n_calls)
                        least[name, arm] = min(took, least.get((name, arm), took))
                communication.uninstall()
    for name in dict.fromkeys(name for name, _ in least):
        plain, hooked, recorded = (least[name, arm] for arm in ARMS)
        print(
            f"{name}: {plain:.2f} us; with hooks and no recording {hooked - plain:+.2f} us, "
            f"recorded {recorded - plain:+.2f} us"
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
