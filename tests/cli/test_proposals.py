"""What is proposed is what advice ranks, in lines that are understood, whatever was run."""

from __future__ import annotations

import ast
import shlex
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from iobench.analysis.diagnosis import diagnosis_of
from iobench.analysis.replay.runs import recorded_runs
from iobench.analysis.run import Run
from iobench.cli.app import make_app
from iobench.cli.command import parsed
from iobench.cli.profile_command import profile_config
from iobench.command_options import NOT_OF_STORES, OF_PROFILE
from iobench.errors import OptionError
from iobench.findings.advice.advising import advice_of
from iobench.findings.advice.loading import commands_of, loading_of
from iobench.findings.advice.next_steps import FINDING
from iobench.findings.advice.proposals import AdviceOutcome, Evidence, Gain, Lever, change
from iobench.profiling.config import RunConfig
from iobench.report.sentences import verdict_sentence

sys.path.append(str(Path(__file__).parents[1] / "analysis" / "support"))

from schedules import pool

MS = 1_000_000
SLOW = [(60 * MS, 30 * MS, 10 * MS)] * 60
TURNS = [(100 * MS, 0, 0), (0, 100 * MS, 0)] * 40
STORE = {"path": "a", "probe": True, "nbytes": 10**9, "n_samples": 240, "n_samples_all": 240}
GIVEN = {**STORE, "probe": False, "target": "./a store.zarr", "path": "/data/a store.zarr"}
LAUNCHED = {"kind": "script", "command": "python train.py"}
BUCKET = "s3://bucket/a.zarr"
RUNS = {
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
        "command": "iobench profile x --format numpy --store-dir st", "format": "numpy",
        "store": STORE,
    },
    "zarr": {"command": "iobench profile x --format zarr", "format": "zarr", "store": STORE},
    "options of a format": {
        "command": "iobench profile x --format source --format zarr:codec=blosc-lz4,dtype=float16",
        "format": "zarr", "spelled": "zarr:codec=blosc-lz4,dtype=float16", "store": STORE,
    },
    "given store": {
        "command": "iobench profile './a store.zarr' --cache cold --window=-1,0:1 --store-dir st",
        "format": "zarr", "store": GIVEN, "sources": [], "stand_in": True, "files_nbytes": 10**9,
    },
    "given store beside its source": {
        "command": "iobench profile x.nc './a store.zarr' --sample-dim time --format source,numpy",
        "format": "zarr", "store": GIVEN, "sources": ["x.nc"],
    },
    "in a bucket": {
        "command": f"iobench profile {BUCKET} --cache cold", "format": "zarr", "sources": [],
        "store": {**GIVEN, "target": BUCKET, "path": BUCKET},
    },
    "tensorflow": {"command": "iobench profile x", "framework": "tensorflow"},
    "serial": {"command": "iobench profile x --workers 0", "workers": 0},
    "own order": {"command": "iobench profile module:DATASET", "own_order": True},
    "cold": {"command": "iobench profile x.nc --cache cold", "files_nbytes": 10**9},
    "script": LAUNCHED,
    "keras": {**LAUNCHED, "framework": "keras"},
    "started by a launcher": {**LAUNCHED, "command": "torchrun --nproc-per-node 4 train.py"},
    "somebody else's": {"command": "iobench profile 'an unclosed quote"},
}  # fmt: skip
KINDS = {
    "bound": {}, "no more CPUs": {"cpus": 2}, "serial": {"workers": 0},
    "one worker": {"workers": 1},
    "more workers than CPUs": {"workers": 8, "cpus": 2, "step_ms": 2}, "hidden": {"step_ms": 80},
    "hardly hidden": {"step_ms": 49}, "stages in turns": {"durations": TURNS, "step_ms": 5},
    "few batches": {"durations": SLOW[:3]}, "own order": {"own_order": True},
    "a store": {"format": "numpy", "store": STORE}, "a script": LAUNCHED,
    "a hidden script": {**LAUNCHED, "step_ms": 80}, "tensorflow": {"framework": "tensorflow"},
    "native": {"framework": "native"}, "nobody saw its workers": {"unseen": True},
}  # fmt: skip


def run_of(durations=SLOW, workers=2, step_ms=15, cpus=4, unseen=False, **config):
    """Return a run of a pool, as a report reads it."""
    sketch = pool(durations, workers=workers, step_ns=step_ms * MS)
    for worker in range(workers if unseen else 0):
        sketch = sketch.without(("worker", worker))
    sketch.config |= {
        "dataset": "own", "format": "source", "framework": "torch", "n_samples_all": 1000,
        "sample_nbytes": 10**6, "machine": {"cpus": cpus, "memory_nbytes": 16 * 10**9},
        "command": "iobench profile a.nc --format source --out runs/1", **config,
    }  # fmt: skip
    return Run(sketch.data()).of_rank()


def advice_and_steps(run):
    advice, steps = advice_of([loading_of(run, recorded_runs(run))]), FINDING.figures(run)
    assert advice is not None
    assert steps is not None
    return advice, steps


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_recommended_is_what_advise_proposes_and_never_what_it_rules_out(kind):
    advice, steps = advice_and_steps(run_of(**KINDS[kind]))
    titles = [each.title for each in (*advice.changes, *advice.to_measure)]
    ruled_out = {each.title for each in advice.ruled_out} - {*titles}
    promised = [step for step in steps if "saves" in step.reason]
    for step, title in zip(promised, titles, strict=False):
        assert step.reason.startswith(title)
    for step in steps:
        assert not any(step.reason.startswith(f"{title}:") for title in ruled_out)
    assert bool(promised) is bool(titles)
    nothing = any("nothing to gain" in step.reason for step in steps)
    assert nothing is (advice.outcome is AdviceOutcome.NOTHING_TO_GAIN)
    for each in (*advice.changes, *advice.to_measure):  # no bound exceeds what the loop waits
        assert each.evidence is not Evidence.BOUND or each.expected <= advice.baseline.wait_fraction


@pytest.mark.parametrize(("kind", "stage"), [("stages in turns", None), ("bound", "read")])
def test_a_verdict_names_a_stage_only_where_it_alone_helps(kind, stage):
    diagnosis = diagnosis_of(run_of(**KINDS[kind]))
    assert diagnosis.top_alone_gains is (stage is not None)
    assert ("most of all" in verdict_sentence(diagnosis)) is (stage is not None)
    assert stage in (None, diagnosis.top_stage)


def proposals(kind):
    """Return what advice, and what to try next, propose on runs of a pool."""
    lines = []
    for step_ms, durations in ((15, SLOW), (80, SLOW), (0, SLOW[:3])):
        advice, steps = advice_and_steps(run_of(durations, step_ms=step_ms, **RUNS[kind]))
        lines += [line for e in (*advice.changes, *advice.to_measure) for line in e.commands]
        lines += [step.command for step in steps if step.command]
    assert lines
    return lines


@pytest.mark.quick_cases(6)
@pytest.mark.parametrize("kind", RUNS)
def test_the_command_line_takes_every_command_that_is_proposed(kind):
    if kind == "in a bucket":
        pytest.importorskip("obstore", reason="a profile of a bucket's store looks for it")
    for line in proposals(kind):
        words = shlex.split(line, comments=True)
        if words[0] == "iobench":
            parsed(make_app().commands[words[1]], words[2:])
            if words[1] == "profile":
                profile_config(words[2:])
        elif words[0] != "cat":
            ast.parse(line)


@pytest.mark.parametrize("kind", ["given store", "in a bucket"])
def test_of_stores_alone_no_conversion_and_nothing_of_a_source_is_proposed(kind):
    found = proposals(kind)
    profiled = [shlex.split(line) for line in found if line.startswith("iobench profile")]
    assert not [line for line in found if line.startswith("iobench convert")]
    assert not [words for words in profiled if {*words} & {*NOT_OF_STORES}]


@pytest.mark.parametrize("option", NOT_OF_STORES)
def test_what_is_of_no_meaning_for_stores_is_refused_for_them(option):
    value = {"--option": ["a=b"], "--pipeline": ["upstream"]}
    is_flag = OF_PROFILE[option].is_flag
    config = profile_config(["x", option, *value.get(option, ["source"] if not is_flag else [])])
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


SPLITS = " --split-by train:time=2010/2012"
STORED = {"store": "s.zarr", "framework": "native"}


@pytest.mark.parametrize(
    ("settings", "more", "line"),
    [
        (
            {"framework": "native"},
            SPLITS,
            'iobench.open_dataset("a.nc", "b c.nc", split="train", '
            'split_by=["train:time=2010/2012"], sample_dim="time", variables=["t", "u"])'
            '.loader(8, shuffle=True, window="-1,0:1")',
        ),
        (STORED, SPLITS, 'iobench.loader("s.zarr", 8, shuffle=True, window="-1,0:1")'),
        (STORED, "", 'iobench.loader("s.zarr", 8, shuffle=True, window="-1,0:1", split="train")'),
    ],
)
def test_lines_load_the_samples_that_were_measured(settings, more, line):
    command = (
        "iobench profile a.nc 'b c.nc' --sample-dim time --variables t,u --window=-1,0:1 "
        f"--split train --framework workers{more}"
    )
    facts = {"dataset": "own", "is_script": False, "framework": "workers"}
    baseline = SimpleNamespace(
        facts=SimpleNamespace(command=command, sources=None, **facts),
        loader=SimpleNamespace(batch_size=8, workers=2),
        store=None, named_store=None, format="source", framework="workers", pipeline="own",
    )  # fmt: skip
    levers = (Lever.FORMAT, Lever.LOADER) if "store" in settings else (Lever.LOADER,)
    proposed = change(levers, settings, Gain(Evidence.BOUND, None, 0.0, 0.5))
    assert commands_of(proposed, baseline)[0] == line
