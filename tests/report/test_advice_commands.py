"""The lines that make a change, and those that measure it."""

from __future__ import annotations

from types import SimpleNamespace

from iobench.findings.advice.commands import commands_of
from iobench.findings.advice.levers import Candidate, Lever


def test_lines_load_the_samples_that_were_measured() -> None:
    command = (
        "iobench profile a.nc 'b c.nc' --sample-dim time --variables t,u --window=-1,0:1 "
        "--split train --framework workers --allow-gaps --split-by train:time=2010/2012"
    )
    facts = SimpleNamespace(
        command=command, dataset="own", is_script=False, framework="workers", sources=None
    )
    baseline = SimpleNamespace(
        run=SimpleNamespace(batch_size=8, workers=2),
        store=None,
        given=None,
        format="source",
        framework="workers",
        pipeline="own",
    )
    native = Candidate((Lever.LOADER,), {"framework": "native"})
    line, _ = commands_of(native, facts, baseline)  # type: ignore[arg-type]
    assert line == (
        'iobench.open_dataset("a.nc", "b c.nc", sample_dim="time", split="train", '
        'variables=["t", "u"], split_by=["train:time=2010/2012"], allow_gaps=True)'
        '.loader(8, shuffle=True, window="-1,0:1")'
    )
    stored = Candidate((Lever.FORMAT, Lever.LOADER), {"store": "s.zarr", "framework": "native"})
    line, _ = commands_of(stored, facts, baseline)  # type: ignore[arg-type]
    assert line == 'iobench.loader("s.zarr", 8, shuffle=True, window="-1,0:1")'
    facts.command = command.rpartition(" --allow-gaps")[0]
    line, _ = commands_of(stored, facts, baseline)  # type: ignore[arg-type]
    assert line == 'iobench.loader("s.zarr", 8, shuffle=True, window="-1,0:1", split="train")'
    torch = Candidate((Lever.FORMAT, Lever.LOADER), {"store": "s.zarr", "framework": "torch"})
    line, _ = commands_of(torch, facts, baseline)  # type: ignore[arg-type]
    assert line == 'DataLoader(iobench.open_store("s.zarr"), 8, shuffle=True, num_workers=2)'
