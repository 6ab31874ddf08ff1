"""``iobench profile --device``: which device batches are copied to, and what is kept of that."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

import iobench
from iobench.cli import main
from iobench.recording.kinds import Kind
from iobench.recording.span_file import Flag

torch = pytest.importorskip("torch", reason="devices are torch's")
from fake_accelerator import FakeAccelerator, Faults  # noqa: E402

MODULE = """
import numpy as np

class Numbered:
    def __len__(self):
        return 64
    def __getitem__(self, number):
        return {"field": np.full((32, 32), number, "f4"), "day": np.int64(number)}
"""
NBYTES = 4 * (32 * 32 * 4 + 8)


@pytest.fixture(autouse=True)
def numbers(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("copied_numbers.py").write_text(MODULE)


@pytest.fixture
def device(monkeypatch):
    with FakeAccelerator() as device:
        use(device, monkeypatch)
        yield device


def use(device, monkeypatch):
    """Let it be found."""
    monkeypatch.setattr("iobench.torch.device.find_accelerator", lambda *_, **__: device)


def profiled(*more):
    words = ["--batch-size", "4"]
    words += [] if "--batches" in more else ["--batches", "12"]
    words += [] if "--workers" in more else ["--workers", "2"]
    assert main(["profile", "copied_numbers:Numbered", "--out", "run", *words, *more]) == 0
    if "--json" not in more:
        assert main(["report", "run", "--full"]) == 0
    return Path("run")


def copies_of(run):
    """Return the spans of copies, of the host and of the device, by batch."""
    spans = iobench.open_profile(run).spans
    copies = spans[spans["kind"] == Kind.H2D]
    copies = copies[np.argsort(copies["batch"], kind="stable")]
    there = (copies["flags"] & Flag.DEVICE) != 0
    return copies[~there], copies[there]


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("framework", ["native", "workers"])
def test_threads_that_fill_batches_copy_them_ahead(device, framework):
    run = profiled("--device", "cuda", "--framework", framework, "--compute", "1ms")
    host, there = copies_of(run)
    assert host["batch"].tolist() == there["batch"].tolist() == list(range(12))
    assert host["nbytes"].tolist() == there["nbytes"].tolist() == [NBYTES] * 12
    assert {piece.queue for piece in device.pieces} == {"copies"}
    assert all(piece.pinned for piece in device.pieces)
    waits = iobench.open_profile(run).spans
    waits = waits[(waits["kind"] == Kind.WAIT) & (waits["batch"] >= 0)]
    # Each is on the device before the loop is given it.
    assert (there["end_ns"] <= waits["end_ns"][np.argsort(waits["batch"])]).all()
    assert not device.pinned
    told = json.loads((run / "run.json").read_text())
    assert told["device"] == {
        "name": "fake:0",
        "facts": {"title": "threads", "kind": "fake"},
        "memory": "pinned",
        "copied_by": "",
    }


def test_the_loop_copies_what_torch_loads_and_computes_when_it_is_there(device, capsys):
    run = profiled("--device", "cuda", "--framework", "torch", "--compute", "1ms", "--json")
    (found,) = json.loads(capsys.readouterr().out)["runs"]
    host, there = copies_of(run)
    assert there["batch"].tolist() == list(range(12))
    assert there["nbytes"].tolist() == [NBYTES] * 12
    assert host["nbytes"].tolist() == [NBYTES] * 12
    assert {piece.queue for piece in device.pieces} == {"compute"}
    profile = iobench.open_profile(run)
    forward = profile.spans[profile.spans["kind"] == Kind.FORWARD]
    begun = forward["start_ns"][np.argsort(forward["batch"])]
    ended = [piece.end_ns for piece in device.pieces[1::2]]  # the second array of each batch
    assert (begun >= np.array(ended)).all()
    (stage,) = (row for row in found["stages"] if row["stage"] == "h2d")
    least_ns = sum(piece.least_ns for piece in device.pieces)
    assert stage["busy_ns"] == stage["exposed_ns"] >= least_ns
    assert "h2d" not in {row["stage"] for row in found["compute_stages"]}


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("framework", ["native", "workers", "torch"])
@pytest.mark.parametrize(
    ("faults", "told"),
    [
        (Faults(allocation=17), "fake:0: copying a batch of .* bytes failed: CUDA out of memory"),
        (Faults(copy=17), "fake:0: .* failed: CUDA error: device-side assert"),
    ],
)
def test_a_device_that_fails_in_the_middle_ends_the_profile_in_one_line(
    monkeypatch, capsys, framework, faults, told
):
    with FakeAccelerator(faults=faults) as device:
        use(device, monkeypatch)
        words = ("--batches", "40", "--batch-size", "4", "--workers", "2", "--compute", "none")
        words = [*words, "--device", "cuda", "--framework", framework]
        code = main(["profile", "copied_numbers:Numbered", "--out", "run", *words])
    said = capsys.readouterr().err
    assert code == 1
    assert re.search(told, said)
    assert "Traceback" not in said
    spans = iobench.open_profile("run").spans
    assert len(spans[(spans["kind"] == Kind.WAIT) & (spans["batch"] >= 0)]) >= 1
    assert len(copies_of(Path("run"))[0]) >= 1


def test_a_device_that_its_driver_refuses_ends_only_a_profile_that_names_it(device, capsys):
    device.fall_away()
    assert main(["profile", "copied_numbers:Numbered", "--device", "cuda"]) == 69
    why = "fake:0 cannot be used: CUDA error: device-side assert triggered"
    assert f"--device cuda: {why}" in capsys.readouterr().err
    profiled("--compute", "none")
    text = " ".join(capsys.readouterr().out.split())
    assert f"Host-to-device copies: not measured (--device auto: {why})." in text
