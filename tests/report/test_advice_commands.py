"""The lines that make a change, and those that measure it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from iobench.findings.advice.commands import commands_of
from iobench.findings.advice.proposals import Evidence, Gain, Lever, change

SPLITS = " --split-by train:time=2010/2012"
NATIVE = {"framework": "native"}
STORED = {"store": "s.zarr", "framework": "native"}


@pytest.mark.parametrize(
    ("settings", "more", "line"),
    [
        (
            NATIVE,
            SPLITS,
            'iobench.open_dataset("a.nc", "b c.nc", split="train", '
            'split_by=["train:time=2010/2012"], sample_dim="time", variables=["t", "u"])'
            '.loader(8, shuffle=True, window="-1,0:1")',
        ),
        (STORED, SPLITS, 'iobench.loader("s.zarr", 8, shuffle=True, window="-1,0:1")'),
        (STORED, "", 'iobench.loader("s.zarr", 8, shuffle=True, window="-1,0:1", split="train")'),
    ],
)
def test_lines_load_the_samples_that_were_measured(
    settings: dict[str, str | int], more: str, line: str
) -> None:
    command = (
        "iobench profile a.nc 'b c.nc' --sample-dim time --variables t,u --window=-1,0:1 "
        f"--split train --framework workers{more}"
    )
    facts: dict[str, Any] = {"dataset": "own", "is_script": False, "framework": "workers"}
    baseline: Any = SimpleNamespace(
        facts=SimpleNamespace(command=command, sources=None, **facts),
        loader=SimpleNamespace(batch_size=8, workers=2),
        store=None,
        named_store=None,
        format="source",
        framework="workers",
        pipeline="own",
    )
    levers = (Lever.FORMAT, Lever.LOADER) if "store" in settings else (Lever.LOADER,)
    proposed = change(levers, settings, Gain(Evidence.BOUND, None, 0.0, 0.5))
    assert commands_of(proposed, baseline)[0] == line
