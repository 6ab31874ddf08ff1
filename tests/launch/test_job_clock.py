"""Where the time of whole scripts goes, known by their sleeps: varied, cut off and killed.

A sleep is never shorter than asked for, so that each part is at least what the script slept in it;
how much longer a busy machine makes it is not asked.
"""

from __future__ import annotations

import os
import signal
import sys
import zipfile

import pytest

from iobench.analysis.exposure_figures import PARTS
from iobench.analysis.run import Run
from tests.support.run_json import to_json

pytestmark = pytest.mark.timeout(240)

LOAD = """
    import os, signal, sys, time
    from pathlib import Path
    import numpy as np

    folder = Path(sys.argv[1])
    n_files, seconds, end = int(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
    for k in range(n_files):
        np.save(folder / f"{k}.npy", np.zeros(50_000))
    parts = []
    for k in range(n_files):
        parts.append(np.load(folder / f"{k}.npy"))
        time.sleep(seconds)
    if end == "_exit":
        os._exit(3)
    if end == "raise":
        raise RuntimeError("at the end of the initial load")
"""


def job_of(found):
    """Return the parts of a launched script's time, and the JSON of the job and of the run."""
    document = to_json([Run(found.run)])
    job, (run, *_) = document["job"], document["runs"]
    assert tuple(each["part"] for each in job["parts"]) == PARTS
    assert sum(each["ns"] for each in job["parts"]) == job["wall_ns"]
    assert job["bound_by"] == max(job["parts"], key=lambda each: each["ns"])["part"]
    return {each["part"]: each["ns"] for each in job["parts"]}, job, run


@pytest.mark.quick_cases(0)
@pytest.mark.parametrize(
    ("n_files", "seconds", "end", "code"), [(12, 0.1, "", 0), (3, 0.4, "_exit", 3)]
)
def test_a_script_that_ends_in_its_initial_load(
    script, launch, tmp_path, n_files, seconds, end, code
):
    found = launch(sys.executable, script(LOAD), tmp_path, n_files, seconds, end)
    assert found.code == code
    parts, job, _ = job_of(found)
    # Of a script that ends by itself and has no loop nobody knows whether it would read again.
    part = "initial_load" if end else "between"
    assert (parts["initial_load"] > 0) is bool(end)
    assert parts["between"] >= round(seconds * n_files * 1e9)
    assert parts["imports"] > 0
    assert not any(parts[name] for name in PARTS if name.startswith(("train", "validation")))
    load = next(each for each in job["parts"] if each["part"] == part)
    assert load["nbytes"] == n_files * 400_000
    assert job["unknown"]


SAMPLES = """
    import os, signal, sys, time
    import torch

    class Samples(torch.utils.data.Dataset):
        def __init__(self, n, seconds):
            self.n, self.seconds = n, seconds

        def __len__(self):
            return self.n

        def __getitem__(self, i):
            time.sleep(self.seconds)
            return torch.zeros(10)
"""
TRAIN = """
    net = torch.nn.Linear(10, 1)
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    first = torch.utils.data.DataLoader(Samples(24, 0.01), batch_size=4)
    second = torch.utils.data.DataLoader(Samples(60, 0.01), batch_size=4)
    for epoch in range(2):
        net.train()
        for x in first:
            optimizer.zero_grad()
            net(x).mean().backward()
            optimizer.step()
            time.sleep(0.02)
        net.eval()
        with torch.no_grad():
            for x in second:
                net(x)
                if epoch and sys.argv[1] == "_exit":
                    os._exit(0)
                if epoch and sys.argv[1]:
                    os.kill(os.getpid(), getattr(signal, sys.argv[1]))
                    time.sleep(60)
        torch.save({"weights": torch.zeros(1000)}, "checkpoint.pt")
"""


@pytest.mark.quick_cases(0)
@pytest.mark.parametrize("end", ["", "SIGKILL", "SIGINT", "_exit"])
def test_a_validation_is_apart_from_the_training_however_it_ends(
    script, launch, monkeypatch, tmp_path, end
):
    pytest.importorskip("torch", reason="the script trains with PyTorch")
    monkeypatch.chdir(tmp_path)
    found = launch(sys.executable, script(SAMPLES + TRAIN), end)
    number = int(getattr(signal, end, 0))
    assert found.code in (-number, number and 128 + number)
    parts, job, run = job_of(found)
    n_passes = 1 if end else 2
    assert parts["train_wait"] >= 2 * 24 * 10_000_000
    assert parts["train_compute"] >= 2 * 6 * 20_000_000
    assert parts["validation_wait"] >= n_passes * 60 * 10_000_000
    checkpoint = next(each for each in job["parts"] if each["part"] == "checkpoint")
    assert checkpoint["nbytes"] > n_passes * 4_000
    assert [each["role"] for each in run["loaders"]] == ["training", "evaluation"]
    assert [(each["batches"], each["complete"]) for each in run["epochs"]] == [(6, True)] * 2
    assert all(each["validation_ns"] > 0 for each in run["epochs"])
    assert run["validation"]["batches"] >= n_passes * 15
    assert run["recurring"]["batches"] == 6
    # Python itself turns Ctrl-C into an exception, and ends as ever.
    assert bool(job["unknown"]) == (end in ("SIGKILL", "_exit"))


NAMED = """
    import torch

    data = torch.utils.data.TensorDataset(torch.zeros(12, 3))
    train_loader = torch.utils.data.DataLoader(data, batch_size=4)
    val_loader = torch.utils.data.DataLoader(data, batch_size=4)
    loaders = {"test": torch.utils.data.DataLoader(data, batch_size=4)}
    testLoader = loaders["test"]

    def run(each):
        for x in each:
            pass

    for x in train_loader:
        pass
    run(val_loader)
    with torch.inference_mode():
        run(testLoader)
    with torch.no_grad():
        for x in torch.utils.data.DataLoader(data, batch_size=4):
            pass
    for x in torch.utils.data.DataLoader(data, batch_size=2):
        pass
"""


@pytest.mark.long
def test_what_passes_are_for_by_names_and_gradients(script, launch):
    pytest.importorskip("torch", reason="the script loads with PyTorch")
    _, _, run = job_of(launch(sys.executable, script(NAMED)))
    assert [each["role"] for each in run["loaders"]] == [
        "training", "validation", "test", "evaluation", None,
    ]  # fmt: skip


MS = 1_000_000
SLEEPS = "import time; time.sleep({})\n"


@pytest.fixture
def packages(tmp_path):
    """Write modules; return the environment in which Python finds them."""

    def write(texts):
        folder = tmp_path / "packages"
        for name, text in texts.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return {**os.environ, "PYTHONPATH": str(folder)}

    return write


LAZY = """
    import torch, sys
    class Samples(torch.utils.data.Dataset):
        def __len__(self):
            return 8
        def __getitem__(self, i):
            import in_wait
            return torch.zeros(3)
    import before
    for x in torch.utils.data.DataLoader(Samples(), batch_size=2):
        import in_loop
    import after
"""


@pytest.mark.long
def test_imports_while_the_training_goes_on_are_a_part_of_it(launch, script, packages):
    pytest.importorskip("torch", reason="the script loads with PyTorch")
    names = ("before", "in_wait", "in_loop", "after")
    environment = packages({f"{name}.py": SLEEPS.format(0.2) for name in names})
    found = launch(sys.executable, script(LAZY), environment=environment)
    parts, _, _ = job_of(found)
    assert parts["imports"] >= 400 * MS
    assert parts["train_wait"] >= 200 * MS
    assert parts["train_compute"] >= 200 * MS


ALL_KINDS = """
    import importlib.util, numpy, sys, threading, time
    for name in ("broken", "not_there"):
        try:
            __import__(name)
        except (RuntimeError, ModuleNotFoundError) as error:
            print(error)
    def late():
        import late
    late()
    def threaded():
        import threaded
    thread = threading.Thread(target=threaded)
    thread.start()
    thread.join()
    importlib.util.find_spec("only_found")  # by the loader of all that is in the archive
    import spread.one, packed
    def lazily(name):
        spec = importlib.util.find_spec(name)
        spec.loader = importlib.util.LazyLoader(spec.loader)
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    lazy, unused = lazily("lazy"), lazily("unused")
    time.sleep(0.3)
    print(lazy.value)
"""


@pytest.mark.long
def test_every_import_of_the_main_thread_is_counted_once(launch, script, packages, tmp_path):
    slow = SLEEPS.format(0.1)
    environment = packages({
        "broken.py": slow + "import within\nraise RuntimeError('broken')",
        "within.py": slow,
        "late.py": slow,
        "threaded.py": SLEEPS.format(0.5),
        "spread/one.py": slow + "import spread.two",
        "spread/two.py": slow,
        "lazy.py": slow + "value = 7",
        "unused.py": slow,
    })  # fmt: skip
    archive = tmp_path / "packed.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("packed/__init__.py", slow + "import packed.more, beside")
        for name in ("packed/more.py", "beside.py", "only_found.py"):
            file.writestr(name, slow)
    environment["PYTHONPATH"] += os.pathsep + str(archive)
    found = launch(sys.executable, script(ALL_KINDS), environment=environment)
    assert (found.code, found.out) == (0, "broken\nNo module named 'not_there'\n7\n")
    parts, _, _ = job_of(found)
    assert parts["imports"] >= 900 * MS
    assert parts["between"] >= 800 * MS, "a thread's imports, and what the script sleeps"
