"""Where the time of whole scripts goes, known by their sleeps: varied, cut off and killed.

A sleep is never shorter than asked for, so that each part is at least what the script slept in it;
how much longer a busy machine makes it is not asked.
"""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING, Any

import pytest

from iobench.analysis.job_figures import PARTS
from iobench.analysis.run import Run
from iobench.findings.compare import compare_runs, comparison_document
from iobench.report.json_report import to_json
from iobench.report.renderers.terminal import TerminalRenderer
from iobench.report.report_document import report_document

if TYPE_CHECKING:
    from collections.abc import Callable

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
    if end == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if end == "raise":
        raise RuntimeError("at the end of the initial load")
"""


def job_of(found: Any) -> tuple[dict[str, int], dict[str, Any], dict[str, Any]]:
    """Return the parts of a launched script's time, and the JSON of the job and of the run."""
    document = to_json([Run(found.run)])
    job, (run, *_) = document["job"], document["runs"]
    assert tuple(each["part"] for each in job["parts"]) == PARTS
    assert sum(each["ns"] for each in job["parts"]) == job["wall_ns"]
    assert job["bound_by"] == max(job["parts"], key=lambda each: each["ns"])["part"]
    return {each["part"]: each["ns"] for each in job["parts"]}, job, run


def text_of(found: Any) -> str:
    return " ".join(TerminalRenderer().render(report_document([Run(found.run)])).split())


@pytest.mark.quick_cases(0, thorough=1)
@pytest.mark.parametrize(
    ("n_files", "seconds", "end", "code"),
    [
        (12, 0.1, "", 0), (3, 0.4, "_exit", 3),
        pytest.param(5, 0.2, "kill", -signal.SIGKILL, marks=pytest.mark.long),
        pytest.param(4, 0.2, "raise", 1, marks=pytest.mark.long),
    ],
)  # fmt: skip
def test_a_script_that_ends_in_its_initial_load(
    script: Callable[..., Any],
    launch: Callable[..., Any],
    tmp_path: Any,
    n_files: int,
    seconds: float,
    end: str,
    code: int,
) -> None:
    found = launch(sys.executable, script(LOAD), tmp_path, n_files, seconds, end)
    assert found.code == code
    parts, job, run = job_of(found)
    assert parts["initial_load"] > 0
    assert parts["between"] >= round(seconds * n_files * 1e9)
    assert parts["imports"] > 0
    assert not any(parts[name] for name in PARTS if name.startswith(("train", "validation")))
    told = next(each for each in job["parts"] if each["part"] == "initial_load")
    assert (told["n_files"], told["nbytes"]) == (n_files, n_files * 400_000)
    assert ("ended without ending its recording" in text_of(found)) == (end in ("_exit", "kill"))
    table, _, _ = text_of(found).partition("Verdict")
    assert "initial load" in table.partition("Where the job's time went")[2]
    assert "of the job is" in run["verdict"] or "The job is bound by " in run["verdict"]


WITHOUT_LOADER = """
    import sys, time
    from pathlib import Path
    import numpy as np
    import torch

    folder = Path(sys.argv[1])
    for k in range(10):
        np.save(folder / f"{k}.npy", np.zeros(10))
    for k in range(10):
        np.load(folder / f"{k}.npy")
        time.sleep(0.05)
    np.save(folder / "x.npy", np.zeros((30, 100_000), dtype="f4"))
    net = torch.nn.Linear(100_000, 1)
    net.train()
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    for k in range(30):
        x = torch.from_numpy(np.load(folder / "x.npy")[k : k + 1])
        time.sleep(0.01)
        optimizer.zero_grad()
        net(x).mean().backward()
        optimizer.step()
"""


@pytest.mark.long
def test_a_training_without_a_loader_is_no_initial_load(
    script: Callable[..., Any], launch: Callable[..., Any], tmp_path: Any
) -> None:
    pytest.importorskip("torch", reason="the script trains with PyTorch")
    found = launch(sys.executable, script(WITHOUT_LOADER), tmp_path)
    assert found.code == 0
    parts, _, _ = job_of(found)
    assert parts["train_compute"] > 0
    assert parts["train_wait"] == 0
    # Between the settings it slept, and in the training it read: neither is a load.
    assert parts["between"] >= 0.05e9 * 9 + 0.01e9 * 29
    assert "follow no batch of a loader that iobench follows" in text_of(found)


BESIDE = """
    import os, sys
    with open("big", "wb") as file:
        file.truncate(500_000_000)
    import numpy
    file = os.open("big", os.O_RDONLY)
    room = bytearray(2**24)
    while os.readv(file, [room]):
        pass
"""


@pytest.mark.thorough
def test_reading_that_no_library_shows_is_told_by_the_system_and_not_counted(
    script: Callable[..., Any],
    launch: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Any,
) -> None:
    monkeypatch.chdir(tmp_path)
    found = launch(sys.executable, script(BESIDE))
    parts, job, _ = job_of(found)
    assert parts["initial_load"] < parts["between"]  # that the file was opened is seen
    assert 300_000_000 <= job["unseen_nbytes"] < 500_000_000
    assert "MB before the first batch, which iobench did not see" in text_of(found)


TRAIN = """
    import os, sys, time
    import torch

    n_validation, end = int(sys.argv[1]), sys.argv[2]

    class Samples(torch.utils.data.Dataset):
        def __init__(self, n, seconds):
            self.n, self.seconds = n, seconds

        def __len__(self):
            return self.n

        def __getitem__(self, i):
            time.sleep(self.seconds)
            return torch.zeros(10)

    net = torch.nn.Linear(10, 1)
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    first = torch.utils.data.DataLoader(Samples(24, 0.0), batch_size=4)
    second = torch.utils.data.DataLoader(Samples(n_validation, 0.01), batch_size=4)
    for _epoch in range(2):
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
                if end == "_exit" and _epoch:
                    os._exit(0)
        torch.save({"weights": torch.zeros(1000)}, "checkpoint.pt")
"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("n_validation", "end"),
    [(60, ""), *(pytest.param(*each, marks=pytest.mark.long) for each in ((8, ""), (60, "_exit")))],
)
def test_a_validation_is_told_from_the_training_whichever_is_longer(
    script: Callable[..., Any],
    launch: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Any,
    n_validation: int,
    end: str,
) -> None:
    pytest.importorskip("torch", reason="the script trains with PyTorch")
    monkeypatch.chdir(tmp_path)
    found = launch(sys.executable, script(TRAIN), n_validation, end)
    parts, job, run = job_of(found)
    n_passes = 1 if end else 2
    assert parts["train_compute"] >= 2 * 6 * 20_000_000
    assert parts["validation_wait"] >= n_passes * n_validation * 10_000_000
    assert parts["checkpoint"] > 0
    told = {each["part"]: each for each in job["parts"]}
    assert told["checkpoint"]["nbytes"] > n_passes * 4_000
    assert [each["role"] for each in run["loaders"]] == ["training", "evaluation"]
    assert [each["batches"] for each in run["epochs"]] == [6, 6]
    assert [each["complete"] for each in run["epochs"]] == [True, True]
    assert all(each["validation_s"] > 0 for each in run["epochs"])
    assert run["validation"]["batches"] >= n_passes * n_validation // 4
    if n_validation > 8:  # else it is hardly anything of a job that imports for long
        assert "The validation waits " in run["verdict"]
    assert run["recurring"]["batches"] == 6


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


def test_what_passes_are_for_by_names_and_gradients(
    script: Callable[..., Any], launch: Callable[..., Any]
) -> None:
    pytest.importorskip("torch", reason="the script loads with PyTorch")
    _, _, run = job_of(launch(sys.executable, script(NAMED)))
    assert [each["role"] for each in run["loaders"]] == [
        "training", "validation", "test", "evaluation", None,
    ]  # fmt: skip


KERAS = """
    import keras, numpy as np, sys
    import tensorflow as tf

    x, y = np.zeros((24, 3), "f4"), np.zeros((24, 1), "f4")
    train = tf.data.Dataset.from_tensor_slices((x, y)).batch(4)
    check = tf.data.Dataset.from_tensor_slices((x[:8], y[:8])).batch(4)
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    more = {}
    if sys.argv[1] == "steps":
        more = dict(steps_per_epoch=5)
        train = train.repeat()
    elif sys.argv[1] == "resumed":
        more = dict(initial_epoch=1)
    model.fit(train, epochs=3, validation_data=check, verbose=0, **more)
    model.evaluate(check, verbose=0)
    model.predict(check, verbose=0)
"""


@pytest.mark.long
@pytest.mark.parametrize(("how", "n_batches"), [("plain", 6), ("steps", 5), ("resumed", 6)])
def test_epochs_of_keras(
    script: Callable[..., Any], launch: Callable[..., Any], how: str, n_batches: int
) -> None:
    pytest.importorskip("keras", reason="the script trains with Keras")
    pytest.importorskip("tensorflow", reason="the script trains with Keras")
    parts, _, run = job_of(launch(sys.executable, script(KERAS), how))
    first = int(how == "resumed")
    assert [each["epoch"] for each in run["epochs"]] == [*range(first, 3)]
    assert [each["batches"] for each in run["epochs"]] == [n_batches] * (3 - first)
    assert all(each["complete"] for each in run["epochs"])
    assert run["validation"]["batches"] == (3 - first) * 2 + 2 + 2
    assert min(parts["train_compute"], parts["validation_compute"]) > 0


ENDING = """
    import os, signal, sys, time
    import torch

    class Samples(torch.utils.data.Dataset):
        def __len__(self):
            return 12

        def __getitem__(self, i):
            time.sleep(0.01)
            return torch.zeros(3)

    end = getattr(signal, sys.argv[1])
    train = torch.utils.data.DataLoader(Samples(), batch_size=4)
    check = torch.utils.data.DataLoader(Samples(), batch_size=4)
    net = torch.nn.Linear(3, 1)
    for x in train:
        net(x).mean().backward()
        torch.optim.SGD(net.parameters(), 0.1).step()
        time.sleep(0.02)
    with torch.no_grad():
        for k, x in enumerate(check):
            if k == 1:
                os.kill(os.getpid(), end)
                time.sleep(60)
"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name",
    ["SIGKILL", *(pytest.param(each, marks=pytest.mark.long) for each in ("SIGTERM", "SIGINT"))],
)
def test_a_script_that_a_signal_ends_in_its_validation(
    script: Callable[..., Any], launch: Callable[..., Any], name: str
) -> None:
    pytest.importorskip("torch", reason="the script trains with PyTorch")
    found = launch(sys.executable, script(ENDING), name)
    assert found.code in (-getattr(signal, name), 128 + getattr(signal, name))
    parts, job, run = job_of(found)
    assert parts["train_wait"] >= 12 * 10_000_000
    assert parts["train_compute"] >= 3 * 20_000_000
    assert parts["validation_wait"] >= 8 * 10_000_000
    assert [each["role"] for each in run["loaders"]] == ["training", "evaluation"]
    # Python itself turns Ctrl-C into an exception, and ends as ever.
    unknown = " ".join(job["unknown"])
    assert ("ended without ending its recording" in unknown) == (name != "SIGINT")
    assert (f"({name})" in unknown) == (name != "SIGINT")


NO_LOOP = """
    import sys, time
    import numpy as np
    if sys.argv[1] == "save":
        import torch
        torch.save({"weights": torch.zeros(1000)}, sys.argv[2])
    time.sleep(0.2)
"""


@pytest.mark.quick_cases(0, thorough=1)
@pytest.mark.parametrize("what", ["nothing", "save"])
def test_a_script_without_any_loop(
    script: Callable[..., Any], launch: Callable[..., Any], tmp_path: Any, what: str
) -> None:
    if what == "save":
        pytest.importorskip("torch", reason="the script saves with PyTorch")
    parts, _, run = job_of(launch(sys.executable, script(NO_LOOP), what, tmp_path / "w.pt"))
    assert parts["between"] >= 200_000_000
    assert (parts["checkpoint"] > 0) == (what == "save")
    assert not any(parts[name] for name in PARTS if name.startswith(("train", "validation")))
    assert parts["initial_load"] == 0
    assert "No loader was asked for batches." in run["verdict"]


ABANDONED = """
    import sys, time
    import torch

    class Samples(torch.utils.data.Dataset):
        def __len__(self):
            return 40

        def __getitem__(self, i):
            time.sleep(0.005)
            return torch.zeros(3)

    if __name__ == "__main__":
        how, workers = sys.argv[1], int(sys.argv[2])
        loader = torch.utils.data.DataLoader(Samples(), batch_size=4, num_workers=workers)
        kept = iter(loader)
        for _ in range(3):
            next(kept)
            time.sleep(0.02)
        if how == "dropped":
            del kept
        time.sleep(0.5)
        if how == "another":
            for k, x in enumerate(loader):
                if k == 1:
                    break
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("how", "workers"),
    [("kept", 1), ("dropped", 0), ("another", 1)],
)
def test_time_after_a_loader_was_left_is_no_training(
    script: Callable[..., Any], launch: Callable[..., Any], how: str, workers: int
) -> None:
    pytest.importorskip("torch", reason="the script loads with PyTorch")
    found = launch(sys.executable, script(ABANDONED), how, workers)
    parts, _, run = job_of(found)
    assert found.code == 0
    assert parts["between"] >= 400_000_000
    assert parts["train_compute"] >= 2 * 20_000_000
    assert run["batches"] == (5 if how == "another" else 3)
    assert not run["epochs"][-1]["complete"]


RANKS = """
    import os, sys, time
    from pathlib import Path
    import numpy as np
    import torch
    import torch.distributed as dist

    slow, folder = int(sys.argv[1]), Path(sys.argv[2])
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo")
    for k in range(3):
        np.save(folder / f"{rank}-{k}.npy", np.zeros(20_000))
    for k in range(3):
        np.load(folder / f"{rank}-{k}.npy")
        time.sleep(1.0 if rank == slow else 0.01)
    dist.barrier()
    data = torch.utils.data.TensorDataset(torch.zeros(8, 3))
    for (x,) in torch.utils.data.DataLoader(data, batch_size=4):
        dist.all_reduce(x)
    dist.destroy_process_group()
"""


@pytest.mark.long
@pytest.mark.parametrize("slow", [0, 1])
def test_a_job_is_told_by_the_rank_that_others_wait_for(
    script: Callable[..., Any], launch: Callable[..., Any], tmp_path: Any, slow: int
) -> None:
    pytest.importorskip("torch", reason="torchrun is torch's")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    found = launch(*torchrun, script(RANKS), slow, tmp_path)
    assert found.code == 0, found.err
    document = to_json([Run(found.run)])
    ranks = [{each["part"]: each["ns"] for each in run["job"]["parts"]} for run in document["runs"]]
    for run, parts in zip(document["runs"], ranks, strict=True):
        assert sum(parts.values()) == run["job"]["wall_ns"]
    load_ns = [parts["initial_load"] for parts in ranks]
    assert load_ns[slow] >= 2_000_000_000 > load_ns[1 - slow]
    # The other one waited as long outside of its loops, and may have ended later.
    job = {each["part"]: each["ns"] for each in document["job"]["parts"]}
    assert job == ranks[slow]
    text = text_of(found)
    assert f"Times are those of rank {slow}: among the ranks that ran longest" in text
    assert "Ranks" in text.partition("Verdict")[0]


ANEW = """
    import sys, time
    from pathlib import Path
    import numpy as np
    import torch

    folder, epochs = Path(sys.argv[1]), int(sys.argv[2])
    net = torch.nn.Linear(10_000, 1)
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    for k in range(3):
        np.save(folder / f"{k}.npy", np.zeros((8, 10_000), "f4"))
    for _ in range(epochs):
        parts = []
        for k in range(3):
            parts.append(np.load(folder / f"{k}.npy"))
            time.sleep(0.1)
        data = torch.utils.data.TensorDataset(torch.from_numpy(np.concatenate(parts)))
        for (x,) in torch.utils.data.DataLoader(data, batch_size=8):
            optimizer.zero_grad()
            net(x).mean().backward()
            optimizer.step()
"""


@pytest.mark.long
def test_a_dataset_that_is_read_anew_for_each_epoch_is_not_hidden(
    script: Callable[..., Any], launch: Callable[..., Any], tmp_path: Any
) -> None:
    pytest.importorskip("torch", reason="the script trains with PyTorch")
    found = launch(sys.executable, script(ANEW), tmp_path, 3)
    parts, job, run = job_of(found)
    assert parts["initial_load"] >= 2 * 100_000_000
    assert parts["between"] >= job["reload_ns"] >= 2 * 2 * 100_000_000
    told = next(each for each in job["parts"] if each["part"] == "between")
    assert told["nbytes"] == 2 * 3 * 320_000
    assert "is reading data after the first pass" in text_of(found)
    assert [(each["batches"], each["complete"]) for each in run["epochs"]] == [(3, True)] * 3
    # Side by side with itself, in the words of the job and of its epochs.
    document = comparison_document(compare_runs([found.run, found.run]))
    text = " ".join(TerminalRenderer().render(document).split())
    rows = "an epoch ", "waiting during it ", "job, from start to end ", "outside of loops "
    assert all(row in text.partition("Whole runs")[2] for row in rows)
