"""``iobench run --free-data``: the loop has as many batches as ever, and hardly waits for them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

TORCH = """
import time, torch
from torch.utils.data import DataLoader, Dataset
class Slow(Dataset):
    def __len__(self): return 160
    def __getitem__(self, i):
        time.sleep(0.004)
        return torch.full((10,), float(i))
if __name__ == "__main__":
    loader = DataLoader(Slow(), batch_size=8, num_workers=WORKERS)
    for epoch in range(2):
        print(epoch, sum(len(batch) for batch in loader))
"""
OURS = """
import time, numpy as np, iobench
class Slow:
    def __len__(self): return 160
    def __getitem__(self, i):
        time.sleep(0.004)
        return {"x": np.full(10, i, "f4")}
loader = iobench.open_dataset(Slow()).loader(8)
for epoch in range(2):
    print(epoch, sum(len(batch["x"]) for batch in loader))
"""
KERAS = """
import time, numpy as np, tensorflow as tf, keras
def slow(x):
    time.sleep(0.004)
    return x
def read(x):
    return tf.ensure_shape(tf.py_function(slow, [x], tf.float32), (8,))
data = tf.data.Dataset.from_tensor_slices(np.ones((160, 8), "f4")).map(read).batch(8)
model = keras.Sequential([keras.layers.Dense(1)])
model.compile("sgd", "mse")
history = model.fit(data.map(lambda x: (x, x[:, :1])), epochs=2, verbose=0)
for epoch in history.epoch:
    print(epoch, 160)
"""


@pytest.mark.long
@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    ("script", "needs"),
    [
        (TORCH.replace("WORKERS", "0"), "torch"),
        (TORCH.replace("WORKERS", "2"), "torch"),
        (OURS, "numpy"),
        (KERAS, "keras"),
    ],
    ids=["torch", "torch-workers", "ours", "keras"],
)
def test_the_loop_has_all_batches_and_hardly_waits(iobench, tmp_path: Path, script, needs) -> None:
    pytest.importorskip(needs, reason="the script trains with it")
    (tmp_path / "train.py").write_text(script)
    waits = {}
    for out, options in (("usual", ()), ("free", ("--free-data",))):
        command = ("run", "--quiet", "--out", out, "--json", f"{out}.json", *options)
        done = iobench(*command, "--", sys.executable, "train.py")
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == ["0 160", "1 160"]
        run = json.loads((tmp_path / f"{out}.json").read_text())["runs"][0]
        assert run["batches"] == 40
        assert run["batch_size"] == 8
        waits[out] = run["epochs"][1]["wait_ns"]
    assert waits["free"] < waits["usual"] / 4
    text = iobench("report", "free").stdout
    assert "Data were free" in text
    assert "Data were free" not in iobench("report", "usual").stdout
