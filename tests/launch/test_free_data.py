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
import time, keras, numpy as np, tensorflow as tf
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


TRAINED = """
import time, torch
from torch.utils.data import DataLoader, Dataset
class Slow(Dataset):
    def __len__(self): return 80
    def __getitem__(self, i):
        time.sleep(0.02)
        return torch.full((10,), float(i))
if __name__ == "__main__":
    model = torch.nn.Linear(10, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    loader = DataLoader(Slow(), batch_size=4, num_workers=1)
    for epoch in range(3):
        for batch in loader:
            model(batch).pow(2).mean().backward()
            optimizer.step()
            time.sleep(0.05)
"""
WITHIN = 0.15


@pytest.mark.long
@pytest.mark.timeout(300)
def test_what_waits_predict_is_what_free_data_bring(iobench, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="the script trains with it")
    (tmp_path / "train.py").write_text(TRAINED)
    script = (sys.executable, "train.py")
    assert iobench("run", "--quiet", "--out", "usual", "--", *script).returncode == 0
    unasked = iobench("advise", "usual", "--try", "free-data")  # may be somebody else's run
    assert (unasked.returncode, unasked.stdout) == (1, "")
    advised = iobench("advise", "usual", "--try", "free-data", "--json", "--", *script)
    assert advised.returncode == 0, advised.stderr
    advice = json.loads(advised.stdout)
    (tried,), free = advice["tried"], advice["free_data"]
    assert free["obtained_steps_per_s"] == pytest.approx(free["predicted_steps_per_s"], rel=WITHIN)
    waits = advice["baseline"]["wait_fraction"]
    assert tried["saved_fraction"] == pytest.approx(waits, abs=WITHIN)
    (run,) = json.loads(iobench("report", "usual", "--json").stdout)["runs"]
    assert run["replay"]["free_data"] == free
    assert "steps/s obtained" in iobench("report", "usual").stdout


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
    assert "What to try next" not in text
    assert "free data" in iobench("advise", "free").stderr
    assert "Data were free" not in iobench("report", "usual").stdout
