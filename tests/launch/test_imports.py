"""What a script's imports took, known by what its modules sleep: never shorter than asked for."""

from __future__ import annotations

import os
import sys
import zipfile

import pytest

from iobench.analysis.run import Run
from iobench.report.json_report import to_json

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


def parts_of(found):
    """Return the time of each part of a launched script's job."""
    job = to_json([Run(found.run)])["job"]
    assert sum(each["ns"] for each in job["parts"]) == job["wall_ns"]
    return {each["part"]: each["ns"] for each in job["parts"]}


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


@pytest.mark.thorough
def test_imports_while_the_training_goes_on_are_a_part_of_it(launch, script, packages):
    pytest.importorskip("torch", reason="the script loads with PyTorch")
    names = ("before", "in_wait", "in_loop", "after")
    environment = packages({f"{name}.py": SLEEPS.format(0.2) for name in names})
    found = launch(sys.executable, script(LAZY), environment=environment)
    parts = parts_of(found)
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


@pytest.mark.thorough
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
    parts = parts_of(found)
    assert parts["imports"] >= 900 * MS
    assert parts["between"] >= 800 * MS, "a thread's imports, and what the script sleeps"
