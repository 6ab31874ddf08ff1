"""Where a script's time went, beside what it timed itself: python tests/benchmarks/job_truth.py.

Training scripts of known sleeps run under ``iobench run``; each reads the clock around its own
loading, computing and saving, so that a loaded machine changes the truth and the figure alike.
Printed is each part of the job as the script knows it and as the report has it, how far they are
apart at worst, how far runs of the same script are (A/A), and what recording took of the training
process by its own measure: the script sees that in its waits, the report has it beside them. A part
is right within 5 %, three times the A/A spread, or that. ``--runs 5``, ``--only validation``.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

from iobench.analysis.run import Run

TRUTH = '''
"""What a script knows of its own time, told as it ends."""
import atexit, json, os, sys, time
from collections import Counter

now = time.perf_counter_ns
FIRST = now()
spent = Counter()


def started_ns():
    with open("/proc/self/stat") as file:
        ticks = int(file.read().rpartition(")")[2].split()[19])
    of_boot = ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    return of_boot + now() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class part:
    def __init__(self, name):
        self.name = name

    def __enter__(self):
        self.began_ns = now()

    def __exit__(self, *error):
        spent[self.name] += now() - self.began_ns


def batches(name, loader):
    """Hand on what a loader brings; waiting is what it takes to bring it, the rest computing."""
    requested_ns = now()
    for batch in loader:
        got_ns = now()
        spent[name + "_wait"] += got_ns - requested_ns
        yield batch
        requested_ns = now()
        spent[name + "_compute"] += requested_ns - got_ns
    spent[name + "_wait"] += now() - requested_ns


def own_imports():
    """Import what iobench would at the first pass, so that it stands in no loop of the script's."""
    if os.environ.get("IOBENCH_RUN"):
        import iobench.torch.observing


def tell():
    spent["imports"] += FIRST - started_ns()
    with open(os.environ["TRUTH"], "w") as file:
        json.dump(spent, file)


if os.environ.get("TRUTH"):
    atexit.register(tell)
    owner = os.getpid()
    os.register_at_fork(after_in_child=lambda: atexit.unregister(tell))
'''

SCRIPTS = {
    "initial_load": """
        import truth
        with truth.part("imports"):
            import sys, tempfile, time
            from pathlib import Path
            import numpy as np
            import torch
            truth.own_imports()
        folder, n_files = Path(tempfile.mkdtemp()), int(sys.argv[1])
        for k in range(n_files):
            np.save(folder / f"{k}.npy", np.zeros((10, 3, 50, 50), dtype="f4"))
        with truth.part("initial_load"):
            parts = []
            for k in range(n_files):
                parts.append(np.load(folder / f"{k}.npy"))
                time.sleep(float(sys.argv[2]))
        data = torch.utils.data.TensorDataset(torch.from_numpy(np.concatenate(parts)))
        net = torch.nn.Conv2d(3, 4, 3)
        for _epoch in range(2):
            loader = torch.utils.data.DataLoader(data, batch_size=20)
            for (x,) in truth.batches("train", loader):
                net(x).mean().backward()
                time.sleep(0.02)
    """,
    "validation": """
        import truth
        with truth.part("imports"):
            import sys, tempfile, time
            from pathlib import Path
            import torch
            truth.own_imports()

        class Samples(torch.utils.data.Dataset):
            def __init__(self, n, seconds):
                self.n, self.seconds = n, seconds

            def __len__(self):
                return self.n

            def __getitem__(self, i):
                time.sleep(self.seconds)
                return torch.zeros(1000)

        if __name__ == "__main__":
            n, workers = int(sys.argv[1]), int(sys.argv[2])
            make = torch.utils.data.DataLoader
            checkpoint = Path(tempfile.mkdtemp()) / "checkpoint.pt"
            net = torch.nn.Linear(1000, 1)
            weights = {"weights": torch.zeros(20_000_000)}
            with truth.part("imports"):  # torch imports a second's worth for its first optimizer
                optimizer = torch.optim.SGD(net.parameters(), 0.01)
            train = make(Samples(96, 0.001), 4, num_workers=1, persistent_workers=True)
            validation = make(Samples(n, 0.005), 4, num_workers=workers)
            for _epoch in range(2):
                net.train()
                for x in truth.batches("train", train):
                    optimizer.zero_grad()
                    net(x).mean().backward()
                    optimizer.step()
                    time.sleep(0.015)
                net.eval()
                with torch.no_grad():
                    for x in truth.batches("validation", validation):
                        net(x)
                        time.sleep(0.01)
                with truth.part("checkpoint"):
                    torch.save(weights, checkpoint)
    """,
    "keras_fit": """
        import truth
        with truth.part("imports"):
            import sys, tempfile, time
            from pathlib import Path
            import keras
            import numpy as np
            import tensorflow as tf

        def samples(n, seconds):
            def make():
                for _ in range(n):
                    time.sleep(seconds)
                    yield np.zeros((8, 8, 3), "f4"), np.zeros(1, "f4")

            shape = (tf.TensorSpec((8, 8, 3)), tf.TensorSpec((1,)))
            options = tf.data.Options()
            options.autotune.enabled = False  # or a prefetch is added, and hides the sleeps
            return tf.data.Dataset.from_generator(make, output_signature=shape).batch(
                4).with_options(options)

        class Clock(keras.callbacks.Callback):
            # What Keras does before a pass's first batch and after its last one is in it.
            def on_epoch_begin(self, *_, **__):
                self.began_ns = truth.now()

            def on_test_begin(self, *_, **__):
                self.test_ns = truth.now()
                truth.spent["train"] += self.test_ns - self.began_ns

            def on_test_end(self, *_, **__):
                truth.spent["validation"] += truth.now() - self.test_ns

        layers = keras.layers
        model = keras.Sequential([
            layers.Input((8, 8, 3)), layers.GlobalAveragePooling2D(), layers.Dense(1)])
        model.compile("adam", "mse")
        n, epochs = int(sys.argv[1]), int(sys.argv[2])
        model.fit(samples(n, 0.004), epochs=epochs, validation_data=samples(40, 0.008),
                  verbose=0, callbacks=[Clock()])
        with truth.part("checkpoint"):
            model.save(Path(tempfile.mkdtemp()) / "model.keras")
    """,
    "dask_dataset": """
        import truth
        with truth.part("imports"):
            import sys, tempfile, time
            from pathlib import Path
            import numpy as np
            import torch
            import xarray as xr
            tiny = xr.Dataset({"a": ("x", [1.0])})  # what writing imports, imported
            tiny.to_netcdf(Path(tempfile.mkdtemp()) / "tiny.nc", engine="netcdf4")
            truth.own_imports()

        class Pairs(torch.utils.data.Dataset):
            def __init__(self, path):
                self.path, self.data = path, None

            def __len__(self):
                return 100

            def __getitem__(self, i):
                if self.data is None:
                    self.data = xr.open_dataset(self.path, chunks={"time": 10})
                pair = self.data.t2m.isel(time=slice(i, i + 2))
                return torch.from_numpy(((pair - pair.mean()) / pair.std()).values)

        if __name__ == "__main__":
            path = Path(tempfile.mkdtemp()) / "t2m.nc"
            field = np.random.default_rng(0).random((200, 64, 64), dtype="f4")
            xr.Dataset({"t2m": (("time", "y", "x"), field)}).to_netcdf(
                path, encoding={"t2m": {"zlib": True, "chunksizes": (10, 64, 64)}},
                engine="netcdf4")
            workers = int(sys.argv[1])
            loader = torch.utils.data.DataLoader(Pairs(path), 4, num_workers=workers)
            for batch in truth.batches("train", loader):
                batch.sum()
                time.sleep(0.01)
    """,
}
CASES = {
    "initial_load": ("initial_load", "40", "0.03"),
    "initial_load, few files": ("initial_load", "5", "0.25"),
    "validation": ("validation", "160", "0"),
    "validation_small": ("validation", "40", "0"),
    "validation, 1 worker": ("validation", "160", "1"),
    "keras_fit": ("keras_fit", "120", "3"),
    "keras_fit, 2 epochs": ("keras_fit", "40", "2"),
    "dask_dataset": ("dask_dataset", "1"),
    "dask_dataset, no worker": ("dask_dataset", "0"),
}
CLOSE, SPREADS = 0.05, 3
COARSE_NS = 20_000_000
"""The start of a process is known to 10 ms, by the kernel's count."""


def measured(folder: Path, case: str) -> tuple[dict[str, int], dict[str, int], int]:
    """Return a script's parts as it timed them, as the report has them, and what recording took."""
    name, *arguments = CASES[case]
    run = folder / "run"
    command = ["-m", "iobench", "run", "--out", run, "--"]
    told = subprocess.run(
        [sys.executable, *command, sys.executable, f"{name}.py", *arguments],
        cwd=folder,
        env={**_environment(), "IOBENCH_ENERGY": "off", "TRUTH": str(folder / "truth.json")},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if told.returncode:
        raise SystemExit(f"{case}: {told.stderr}")
    report = subprocess.run(
        [sys.executable, "-m", "iobench", "report", run, "--json"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    job = json.loads(report.stdout)["job"]
    found = {each["part"]: each["ns"] for each in job["parts"]}
    assert sum(found.values()) == job["wall_ns"]
    truth = json.loads((folder / "truth.json").read_text())
    for whole in ("train", "validation"):
        if whole in truth:  # of what waits inside of a compiled function, the sum alone
            found[whole] = found[f"{whole}_wait"] + found[f"{whole}_compute"]
    processes = Run(run).of_rank().processes
    own_ns = max(
        (each.own_ns or 0) + (each.once_ns or 0) for each in processes if each.role == "consumer"
    )
    return truth, found, own_ns


def _environment() -> dict[str, str]:
    return {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}


def table(case: str, runs: list[tuple[dict[str, int], dict[str, int], int]]) -> bool:
    """Print one script's parts; return whether all are right."""
    right = True
    for part in runs[0][0]:
        truths = [truth[part] for truth, _, _ in runs]
        figures = [found[part] for _, found, _ in runs]
        apart = [figure - truth for truth, figure in zip(truths, figures, strict=True)]
        spread = statistics.stdev(truths) if len(truths) > 1 else 0.0
        own_ns = max(own_ns for _, _, own_ns in runs)
        allowed = max(CLOSE * statistics.median(truths), SPREADS * spread, own_ns)
        allowed = max(allowed, COARSE_NS) if part == "imports" else allowed
        worst = max(apart, key=abs)
        is_right = abs(worst) <= allowed
        right &= is_right
        print(
            f"{case:26} {part:19} {statistics.median(truths) / 1e6:9.1f} "
            f"{statistics.median(figures) / 1e6:9.1f} {worst / 1e6:+9.2f} "
            f"{worst / max(statistics.median(truths), 1):+8.1%} {spread / 1e6:8.1f} "
            f"{own_ns / 1e6:7.1f}"
            f"{'' if is_right else '  WRONG'}",
            flush=True,
        )
    return right


def main() -> None:
    """Run the scripts, and print their tables."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--runs", type=int, default=3)
    options.add_argument("--only", default="")
    asked = options.parse_args()
    columns = f"{'truth ms':>9} {'figure':>9} {'worst':>9} {'':>8} {'A/A':>8} {'own':>7}"
    print(f"{'script':26} {'part':19} {columns}")
    right = True
    for case in CASES:
        if asked.only not in case:
            continue
        runs = []
        for _ in range(asked.runs):
            with tempfile.TemporaryDirectory() as made:
                folder = Path(made)
                (folder / "truth.py").write_text(TRUTH)
                for name, text in SCRIPTS.items():
                    (folder / f"{name}.py").write_text(textwrap.dedent(text))
                runs.append(measured(folder, case))
        right &= table(case, runs)
    if not right:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
