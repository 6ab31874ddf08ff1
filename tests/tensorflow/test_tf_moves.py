"""Tensors that a script moves to a device of TensorFlow's, with the batch that they belong to.

The device is a second one of the CPU: TensorFlow copies tensors to it, and needs no accelerator.
Devices are made before TensorFlow is at work: all scripts run in one process of their own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
pytest.importorskip("tensorflow", reason="its tensors are what is moved")

from iobench.analysis.run import Run
from iobench.profiles.reading import open_profile
from iobench.recording.facts import read_process_facts
from iobench.recording.kinds import Kind
from iobench.report.renderers.terminal import TerminalRenderer
from iobench.report.report_document import report_document

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.timeout(240)

BEGIN = """
import contextlib, io, json, os, pickle, sys, traceback
import numpy as np
import tensorflow as tf
import iobench
from iobench.tensorflow import device_moves, hooks

device_moves.counted.add("CPU:1")
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
there = lambda: tf.device("/CPU:1")
values = np.ones((8, 5), np.float32)
batches = tf.data.Dataset.from_tensor_slices(values).batch(2)
told, top = {}, os.getcwd()
for name in sys.argv[1:]:
    os.chdir(os.path.join(top, name))
    hooks.install()
    said, error = io.StringIO(), ""
    try:
        with contextlib.redirect_stdout(said):
            exec(compile(open("script.py").read(), "script.py", "exec"), dict(globals()))
    except Exception:
        error = traceback.format_exc()
    hooks.uninstall()
    told[name] = [said.getvalue(), error]
print(json.dumps(told))
"""
SCRIPTS = {
    "delivered": """
with iobench.record("run"):
    with there():
        tf.convert_to_tensor(np.ones(9, np.int16))  # before the first batch
    for batch in batches.take(2):
        with there():
            on_device = tf.identity(batch)
            tf.identity(input=on_device)
            tf.convert_to_tensor(value=batch.numpy().astype(np.float64))
            tf.constant(np.ones(3, np.int64))
            tf.constant(3.0)
            tf.Variable(1.0)
        batch._copy(device_name="CPU:1")
        on_device.cpu()
        tf.identity(batch)
        tf.convert_to_tensor(batch.numpy())
""",
    "late": """
with iobench.record("run"), there():
    tf.convert_to_tensor(np.ones(1))
    iterator = iter(batches)
    first, second = next(iterator), next(iterator)
    tf.identity(first)
    tf.identity(second)
    tf.identity(first)
    with tf.device("/CPU:0"):
        more = first + 1
    tf.identity(more)
""",
    "same": """
nothing = object()

def facts():
    found = []
    x = tf.constant([1.0, 2.0])
    with there(), tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.identity(x) * tf.convert_to_tensor([3.0, 4.0])
    found.append(tape.gradient(y, x).numpy().tolist())
    for wrong in (
        lambda: x.gpu(), lambda: tf.identity(), lambda: tf.constant("a", tf.int32),
        lambda: tf.convert_to_tensor(nothing), lambda: x._copy(None, "no"),
    ):
        try:
            found.append(repr(wrong()))
        except Exception as error:
            found.append((type(error).__name__, str(error)))

    @tf.function
    def compiled(a):
        for _ in tf.range(2):
            a = tf.identity(a) + tf.constant(1.0) + tf.convert_to_tensor(np.float32(1))
        return tf.identity(a)

    found.append(compiled(x).numpy().tolist())
    graph = compiled.get_concrete_function(x).graph
    found.append(sorted(each.type for each in graph.get_operations()))
    ragged = tf.identity(tf.ragged.constant([[1], [2, 3]]))
    found.append(ragged.to_list())
    found.append(pickle.loads(pickle.dumps(tf.identity)) is tf.identity)
    found.append(tf.random.stateless_uniform([2], [1, 2]).numpy().tolist())
    return found

hooks.uninstall()
plain, stock = facts(), (tf.identity, tf.convert_to_tensor, tf.constant)
hooks.install()
with iobench.record("run"):
    recorded = facts()
hooked = facts()
hooks.uninstall()
assert (tf.identity, tf.convert_to_tensor, tf.constant) == stock
print(json.dumps([plain == recorded, plain == hooked, plain, recorded]))
""",
    "watched": """
with iobench.record("run"):
    for batch in batches:
        pass
with iobench.record("moved"), there():
    for batch in batches:
        tf.identity(batch)
""",
}
HANDED_OUT = {
    "prefetched": "batches.apply(tf.data.experimental.prefetch_to_device('/CPU:1', 1))",
    "copied": "batches.apply(tf.data.experimental.copy_to_device('/CPU:1'))",
    "distributed": "tf.distribute.OneDeviceStrategy('/CPU:1')"
    ".experimental_distribute_dataset(batches)",
}
for name, data in HANDED_OUT.items():
    SCRIPTS[name] = f"with iobench.record('run'):\n    for _ in {data}:\n        pass\n"


@dataclass
class Ran:
    """What one of the scripts did."""

    folder: Path
    printed: str
    error: str

    @property
    def run(self) -> Path:
        assert not self.error, self.error
        return self.folder / "run"

    @property
    def said(self) -> str:
        assert not self.error, self.error
        return self.printed


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ran]:
    """Run all scripts, each in a folder of its own."""
    folder = tmp_path_factory.mktemp("moves")
    for name, text in SCRIPTS.items():
        (folder / name).mkdir()
        (folder / name / "script.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "-c", BEGIN, *SCRIPTS], cwd=folder, capture_output=True, text=True,
        check=False, timeout=200,
    )  # fmt: skip
    assert not done.returncode, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    return {name: Ran(folder / name, *told[name]) for name in SCRIPTS}


def moved(run: Path) -> list[tuple[str, str, int, int]]:
    """Return label, call, bytes and batch of each move that was recorded."""
    profile = open_profile(run)
    text = profile.strings
    return [
        (text[each["label"]], text[each["detail"]], int(each["nbytes"]), int(each["batch"]))
        for each in profile.spans[profile.spans["kind"] == Kind.H2D]
    ]


def unseen(run: Path) -> list[str]:
    told = read_process_facts(run / "processes")
    return [text for facts in told for loader in facts.loaders for text in loader.unseen]


def test_moves_are_of_the_batch_that_was_delivered(ran: dict[str, Ran]) -> None:
    run = ran["delivered"].run
    own = [("identity", 40), ("convert_to_tensor", 80), ("constant", 24), ("gpu", 40)]
    of_batches = [("", call, nbytes, batch) for batch in (0, 1) for call, nbytes in own]
    assert moved(run) == [("other", "convert_to_tensor", 18, -1), *of_batches]
    assert not [each for each in unseen(run) if "delivered on" in each]


def test_a_batch_that_is_moved_late_is_still_that_one(ran: dict[str, Ran]) -> None:
    run = ran["late"].run
    assert [batch for *_, batch in moved(run)] == [-1, 0, 1, 0, 1]


def test_a_script_is_the_same_with_its_moves_seen(ran: dict[str, Ran]) -> None:
    """Values, gradients, exceptions, compiled functions, pickles: with hooks and without."""
    told = ran["same"].said
    same, also, plain, recorded = json.loads(told)
    assert (same, also) == (True, True), (plain, recorded)
    assert [(call, nbytes) for _, call, nbytes, _ in moved(ran["same"].run)] == [
        ("identity", 8), ("convert_to_tensor", 8),
    ]  # fmt: skip


@pytest.mark.parametrize("name", HANDED_OUT)
def test_what_is_handed_out_on_a_device_is_said_to_be_copied_unseen(
    ran: dict[str, Ran], name: str
) -> None:
    run = ran[name].run
    assert moved(run) == []
    told = {each for each in unseen(run) if "delivered on CPU:1" in each}
    assert len(told) == 1


def test_a_report_says_which_calls_were_watched(ran: dict[str, Ran]) -> None:
    run = ran["watched"].run
    assert "none by tf.identity, convert_to_tensor or constant;" in text_of(run)
    moved_text = text_of(run.with_name("moved"))
    assert "none by tf.identity" not in moved_text
    told = "Not seen: TensorFlow: copies to devices that its operations make by themselves"
    assert told in moved_text
    assert told not in text_of(run)


def text_of(path: Any) -> str:
    return " ".join(TerminalRenderer().render(report_document([Run.open(path)])).split())
