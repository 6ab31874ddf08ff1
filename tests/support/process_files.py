"""What a training process told of itself, written beside a run's spans as it leaves it there."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from iobench.recording.this_process import host_name


def loader(number: int, **more: Any) -> dict[str, Any]:
    """Return how a loader of torch is described."""
    about = {"framework": "torch", "kind": "torch.utils.data.DataLoader", "batch_size": 2}
    return {"number": number, "name": f"Samples{number}", **about, **more}


def write_process(run: Path, name: str = "rank0", **more: Any) -> Path:
    """Write the file of this process."""
    told = {"version": 1, "pid": os.getpid(), "ppid": 1, "host": host_name(), "role": "consumer"}
    path = run / "processes" / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({**told, **more}))
    return path
