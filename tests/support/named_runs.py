"""Runs with names of people, machines and places in every corner."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from iobench.recording.kinds import Kind
from iobench.recording.run_directory import RunDirectory
from iobench.testing import FakeClock

MS = 1_000_000
USER, HOST = "zaphodb", "vogon-login07.betelgeuse.example"
HOME = f"/home/{USER}"
SECRETS = (
    USER, "vogon-login07", "betelgeuse", "magrathea", "slartibartfast", "hunter2", "deepthought42",
    "towel-secret", "198.51.100.23", "2001:db8::42", "krikkit-campaign", "fenchurch",
)  # fmt: skip
ENVIRONMENT = {
    "USER": USER,
    "HOME": HOME,
    "SLURM_JOB_NAME": "krikkit-campaign",
    "HOSTNAME": HOST,
}
CONFIG: dict[str, Any] = {
    "kind": "script",
    "dataset": "maelstrom-ens10",
    "format": "source",
    "framework": "torch",
    "workers": 1,
    "command": f"python {HOME}/magrathea/train.py --data {HOME}/magrathea/era5-slartibartfast.nc "
    "--epochs 3 --token=towel-secret --lr 0.1 fenchurch",
    "files_hint": f"{HOME}/magrathea",
    "machine": {"host": HOST, "cpus": 2, "system": "Linux 6.1", "python": "3.11.7"},
    "options": {"url": "https://ford:hunter2@vogon-login07.betelgeuse.example:8443/magrathea/x.nc"
                "?X-Signature=deepthought42", "batch": "16"},
    "notes": f"asked {USER}@betelgeuse.example at 198.51.100.23 and 2001:db8::42, "
    "job krikkit-campaign; read/decode at 3 samples/s",
}  # fmt: skip
DETAILS = (
    f"{HOME}/magrathea/era5-slartibartfast.nc",
    f"{HOME}/magrathea/era5-slartibartfast.nc:t2m",
    f"{HOME}/magrathea/other.grib",
    f"/scratch/{USER}/two words/magrathea.zarr/t2m/c/0/1",
    "s3://magrathea/slartibartfast/part-0001.tfrecord",
    f"augment by {USER}",
)


def write_run(
    path: Path,
    *,
    details: tuple[str, ...] = DETAILS,
    config: dict[str, Any] | None = None,
    closed: bool = True,
    thread: str = "",
) -> RunDirectory:
    """Write a run of six batches with one loading process."""
    run = RunDirectory.create(path, dict(CONFIG if config is None else config))
    consumer = run.recorder(role="consumer", clock=FakeClock(1000))
    worker = run.recorder(role="worker", worker=0, clock=FakeClock(1000))
    maker, label = consumer.string("worker-0"), worker.string(thread or "augment:custom")
    for batch in range(6):
        start = (batch + 1) * 20 * MS
        detail = worker.string(details[batch % len(details)])
        worker.emit(Kind.READ, start, start + 6 * MS, nbytes=1_000_000, batch=batch, detail=detail)
        worker.emit(Kind.PREPROCESS, start + 6 * MS, start + 9 * MS, batch=batch, label=label)
        consumer.emit(Kind.WAIT, start, start + 10 * MS, batch=batch, detail=maker)
        consumer.emit(Kind.FORWARD, start + 10 * MS, start + 20 * MS, batch=batch)
    if closed:
        end = 7 * 20 * MS
        consumer.emit(Kind.WAIT, end, end + MS, label=consumer.string("shutdown"))
        consumer.emit(Kind.OTHER, 20 * MS, end + MS, sample=0, label=consumer.string("round"))
        worker.close()
        consumer.close()
    told = {
        "version": 1, "pid": 77, "ppid": 1, "host": HOST, "role": "consumer",
        "command": ["python", f"{HOME}/magrathea/train.py", "--out", f"{HOME}/out dir/x.nc"],
        "children": [f"rsync {HOME}/magrathea/a.nc fenchurch@vogon-login07:/x"],
        "loaders": [{"number": 0, "framework": "torch", "kind": "torch.utils.data.DataLoader",
                     "name": "Era5Set"}],
    }  # fmt: skip
    (run.path / "processes").mkdir()
    (run.path / "processes" / f"rank00000-{HOST}-77-1.json").write_text(json.dumps(told))
    return run
