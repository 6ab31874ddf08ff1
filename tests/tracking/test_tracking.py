"""What is logged of a run, by names that any server takes; W&B's offline files read back."""

from __future__ import annotations

import json
import re
import struct
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iobench.analysis.run import Run
from iobench.cli import main
from iobench.tracking.run_metrics import PREFIX, legal_name, run_contents


@given(st.text())
def test_names_are_legal(text):
    name = legal_name(text)
    assert re.fullmatch(r"[A-Za-z0-9_.-]+", name)
    assert not set(name) <= {"."}
    assert len(PREFIX + name) < 250


def test_every_epoch_has_its_figures_and_they_add_up(make_run):
    rank = Run(make_run()).of_rank()
    contents = run_contents(rank)
    assert [each.epoch for each in contents.epochs] == [0, 1]
    for each in contents.epochs:
        assert each.metrics[f"{PREFIX}epoch/complete"] == 1.0
        for name in ("batch_s", "exposed_io_s", "forward_s", "backward_s", "read/exposed_s"):
            for figure in ("min", "mean", "median", "max", "stdev"):
                assert f"{PREFIX}{name}/{figure}" in each.metrics
    waited = sum(each.metrics[f"{PREFIX}epoch/wait_s"] for each in contents.epochs)
    assert waited == pytest.approx(contents.totals[f"{PREFIX}run/wait_s"], abs=1e-12)
    assert waited == pytest.approx(rank.exposure.whole.wait_ns / 1e9)


def test_processes_have_keys_of_their_own_which_stay(make_run):
    ranks = [*Run(make_run(ranks=2))]
    keys = [run_contents(each, name=f"rank-{each.rank}").key for each in (*ranks, *ranks)]
    assert keys[:2] == keys[2:]
    assert len(set(keys)) == 2


# -- Weights & Biases ---------------------------------------------------------------------

SECRET = "QQ" * 20


@pytest.fixture
def wandb(monkeypatch):
    """The library, a key, and a page that takes no time."""
    module = pytest.importorskip("wandb", reason="needs wandb")
    renderer = "iobench.tracking.run_logging.HtmlRenderer.render"
    monkeypatch.setattr(renderer, lambda *_: "<p>")
    monkeypatch.setenv("WANDB_API_KEY", SECRET)
    return module


HEAD, PIECE, BLOCK = 7, struct.Struct("<IHB"), 32768
WHOLE, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def entries(content):
    """Yield the protocol buffers of a file: of LevelDB's form behind a head of seven bytes.

    Pieces of a checksum, a length and a type in blocks of 32 KiB.
    """
    parts, at = [], HEAD
    while at + PIECE.size <= len(content):
        if BLOCK - at % BLOCK < PIECE.size:
            at += BLOCK - at % BLOCK
            continue
        _, length, sort = PIECE.unpack_from(content, at)
        if not sort:
            break
        at += PIECE.size
        parts.append(content[at : at + length])
        at += length
        if sort in (WHOLE, LAST):
            yield b"".join(parts)
            parts = []


@pytest.fixture
def offline_runs(wandb, tmp_path):
    """Return runs read back from their files, in the order they were begun."""
    from wandb.proto import wandb_internal_pb2

    def values(items):
        return {e.key or ".".join(e.nested_key): json.loads(e.value_json) for e in items}

    def read(path):
        found = SimpleNamespace(run=None, config={}, history=[], summary={})
        for data in entries(path.read_bytes()):
            told = wandb_internal_pb2.Record.FromString(data)
            sort = told.WhichOneof("record_type")
            if sort == "run":
                found.run = told.run
                found.config |= values(told.run.config.update)
            elif sort == "config":
                found.config |= values(told.config.update)
            elif sort == "history":
                found.history.append(values(told.history.item))
            elif sort == "summary":
                found.summary |= values(told.summary.update)
        return found

    def read_all():
        wandb.teardown()  # its own process may still be writing: this waits for its end
        return [*map(read, sorted(tmp_path.rglob("offline-run-*/*.wandb")))]

    return read_all


def test_a_run_is_read_back(make_run, offline_runs, tmp_path, capfd):
    assert main(["report", str(make_run()), "--json", "--wandb", "me/radiation"]) == 0
    printed = capfd.readouterr()
    assert "wandb sync" in printed.err
    assert printed.out.startswith("{")
    (found,) = offline_runs()
    about = (found.run.entity, found.run.project, found.run.display_name)
    assert about == ("me", "radiation", "run")
    assert found.config["iobench/dataset"] == "maelstrom-yr"
    rows = [row for row in found.history if "iobench/epoch/wall_s" in row]
    assert [row["iobench/epoch"] for row in rows] == [0, 1]
    for name, values in {
        "iobench/read/exposed_s/mean": [0.02, 0.05], "iobench/batch_s/max": [0.05, 0.08],
        "iobench/read/exposed_s/stdev": [0.01, 0.01],
    }.items():  # fmt: skip
        assert [row[name] for row in rows] == pytest.approx(values, abs=1e-9)
    assert found.summary["iobench/run/exposed_fraction"] == pytest.approx(242 / 332)
    assert "I/O-bound" in found.summary["iobench.verdict"]
    (page,) = [row for row in found.history if "iobench/page._type" in row]
    assert page["iobench/page._type"] == "html-file"
    for file in tmp_path.rglob("*"):
        assert not file.is_file() or SECRET.encode() not in file.read_bytes(), file
    assert SECRET not in printed.err


def test_again_it_is_the_same_run_and_several_profiles_are_a_group(
    make_run, offline_runs, tmp_path
):
    run = make_run()
    for _ in range(2):
        assert main(["report", str(run), "--wandb", "radiation"]) == 0
    first, second = offline_runs()
    assert first.run.run_id == second.run.run_id
    steps = [[row["_step"] for row in each.history] for each in (first, second)]
    assert steps[0] == steps[1] == sorted(set(steps[0]))
    assert main(["report", str(make_run("job", ranks=2)), "--wandb", "radiation"]) == 0
    found = [each for each in offline_runs() if each.run.run_group == "job"]
    assert {each.run.display_name for each in found} == {"job rank-0", "job rank-1"}
    assert sum("iobench/page._type" in row for each in found for row in each.history) == 1


def test_a_server_that_refuses_leaves_the_run_and_says_how_to_go_on(
    make_run, wandb, monkeypatch, capsys
):
    def refuse(**_):
        raise wandb.errors.CommError(f"cannot reach https://me:{SECRET}@api\nfor long")

    monkeypatch.setattr(wandb, "init", refuse)
    run = make_run()
    assert main(["report", str(run), "--wandb", "radiation"]) == 75
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert f"iobench report {run} --wandb radiation" in line
    assert SECRET not in line
