"""Every command that is proposed is one that the command line takes, whatever was run."""

from __future__ import annotations

import ast
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from iobench.analysis.replay.runs import recorded_runs
from iobench.analysis.run import Run
from iobench.cli.app import make_app
from iobench.cli.profile_command import profile_config
from iobench.command_options import NOT_OF_STORES, OF_PROFILE
from iobench.errors import OptionError
from iobench.findings.advice.advising import advice_of
from iobench.findings.advice.loading import loading_of
from iobench.findings.advice.next_steps import FINDING
from iobench.profiling.config import RunConfig

sys.path.append(str(Path(__file__).parents[1] / "analysis" / "support"))

from schedules import pool

MS = 1_000_000
STORE = {"path": "a", "probe": True, "nbytes": 10**9, "n_samples": 240, "n_samples_all": 240}
GIVEN = {**STORE, "probe": False, "target": "./a store.zarr", "path": "/data/a store.zarr"}
LAUNCHED = {"kind": "script", "command": "python train.py"}
RUNS: dict[str, dict[str, Any]] = {
    "own file": {"command": "iobench profile 'a file.nc' --variables=t2m,z --out runs/1 --json"},
    "windows": {"command": "iobench profile a.nc --window=-1,0:1 --sample-dim time --split train"},
    "dataset": {
        "command": "iobench profile maelstrom-ens10 --tiny --seed 3 --option a=1 --full",
        "stand_in": True,
    },
    "several ways": {
        "command": "iobench profile maelstrom-ens10 --format source,numpy --framework torch,native"
        " --pipeline own,upstream --darshan off --limits=off --download --compute=none",
        "compute": {"forward_ns": 0, "backward_ns": 0, "source": "none"},
    },
    "store": {
        "command": "iobench profile x --format numpy --store-dir st",
        "format": "numpy",
        "store": STORE,
    },
    "zarr": {"command": "iobench profile x --format zarr", "format": "zarr", "store": STORE},
    "options of a format": {
        "command": "iobench profile x --format source --format zarr:codec=blosc-lz4,dtype=float16",
        "format": "zarr",
        "spelled": "zarr:codec=blosc-lz4,dtype=float16",
        "store": STORE,
    },
    "given store": {
        "command": "iobench profile './a store.zarr' --cache cold --window=-1,0:1 --store-dir st",
        "format": "zarr",
        "store": GIVEN,
        "sources": [],
        "stand_in": True,
        "files_nbytes": 10**9,
    },
    "given store beside its source": {
        "command": "iobench profile x.nc './a store.zarr' --sample-dim time --format source,numpy",
        "format": "zarr",
        "store": GIVEN,
        "sources": ["x.nc"],
    },
    "tensorflow": {"command": "iobench profile x", "framework": "tensorflow"},
    "serial": {"command": "iobench profile x --workers 0", "workers": 0},
    "own order": {"command": "iobench profile module:DATASET", "own_order": True},
    "cold": {"command": "iobench profile x.nc --cache cold", "files_nbytes": 10**9},
    "script": LAUNCHED,
    "keras": {**LAUNCHED, "framework": "keras"},
    "started by a launcher": {**LAUNCHED, "command": "torchrun --nproc-per-node 4 train.py"},
    "somebody else's": {"command": "iobench profile 'an unclosed quote"},
}


IN_A_BUCKET = {
    "command": "iobench profile s3://bucket/a.zarr --cache cold",
    "format": "zarr",
    "store": {**GIVEN, "target": "s3://bucket/a.zarr", "path": "s3://bucket/a.zarr"},
    "sources": [],
}


def proposals(config: dict[str, Any], step_ms: int) -> Iterator[str]:
    """Yield what advice, and what to try next, propose on a run of a pool."""
    workers = config.get("workers", 2)
    durations = [(60 * MS, 30 * MS, 10 * MS)] * (60 if step_ms else 3)
    sketch = pool(durations, workers=workers, step_ns=step_ms * MS)
    machine = {"cpus": 4, "memory_nbytes": 16 * 10**9}
    known = {"n_samples_all": 1000, "sample_nbytes": 10**6, "machine": machine}
    sketch.config |= {"dataset": "own", "format": "source", "framework": "torch", **known, **config}
    run = Run(sketch.data()).of_rank()
    advice = advice_of([loading_of(run, recorded_runs(run))])
    assert advice is not None
    for change in (*advice.changes, *advice.to_measure):
        yield from change.commands
    figures = FINDING.figures(run)
    assert figures is not None
    yield from (step.command for step in figures if step.command)


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize("kind", RUNS)
def test_the_command_line_takes_every_command_that_is_proposed(kind: str) -> None:
    found = [line for step_ms in (15, 80, 0) for line in proposals(RUNS[kind], step_ms)]
    assert found
    for line in found:
        words = shlex.split(line, comments=True)
        if words[0] == "iobench":
            parsed(words[1:])
            if words[1] == "profile":
                profile_config(words[2:])
        elif words[0] != "cat":
            ast.parse(line)


def test_of_stores_alone_no_conversion_and_nothing_of_a_source_is_proposed() -> None:
    for config in (RUNS["given store"], IN_A_BUCKET):
        found = [line for step_ms in (15, 80, 0) for line in proposals(config, step_ms)]
        profiled = [shlex.split(line) for line in found if line.startswith("iobench profile")]
        assert not [line for line in found if line.startswith("iobench convert")]
        assert not [words for words in profiled if {*words} & {*NOT_OF_STORES}]


def test_what_is_of_no_meaning_for_stores_is_refused_for_them() -> None:
    for option in NOT_OF_STORES:
        value = {"--option": ["a=b"], "--pipeline": ["upstream"]}
        is_flag = OF_PROFILE[option].is_flag
        words = [option, *value.get(option, ["source"] if not is_flag else [])]
        config = profile_config(["x", *words])
        alone = RunConfig(targets=(), stores=("a.zarr",), formats=())
        changed = {
            each: getattr(config, each)
            for each in RunConfig.__struct_fields__
            if each not in ("targets", "stores", "command")
            and (option == "--format") == (each == "formats")
            and getattr(config, each) != getattr(alone, each)
        }
        with pytest.raises(OptionError, match=f"{option}.* a finished store"):
            replace(alone, **changed)


def parsed(words: list[str]) -> dict[str, Any]:
    """Return the values that a command would get, as the command line reads its words."""
    name, *rest = words
    command = make_app().commands[name]
    with command.make_context(name, rest, resilient_parsing=False) as context:
        values: dict[str, Any] = context.params
    return values
