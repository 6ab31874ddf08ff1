"""What a script's imports took, known by what its modules sleep: never shorter than asked for."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from iobench.analysis.run import Run
from iobench.report.json_report import to_json
from iobench.report.renderers.terminal import TerminalRenderer
from iobench.report.report_document import report_document

Launch = Callable[..., Any]
Script = Callable[..., Path]

MS = 1_000_000
SLEEPS = "import time; time.sleep({})\n"


@pytest.fixture
def packages(tmp_path: Path) -> Callable[[Mapping[str, str]], dict[str, str]]:
    """Write modules; return the environment in which Python finds them."""

    def write(texts: Mapping[str, str]) -> dict[str, str]:
        folder = tmp_path / "packages"
        for name, text in texts.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return {**os.environ, "PYTHONPATH": str(folder)}

    return write


def parts_of(found: Any) -> dict[str, int]:
    """Return the time of each part of a launched script's job."""
    job = to_json([Run(found.run)])["job"]
    assert sum(each["ns"] for each in job["parts"]) == job["wall_ns"]
    return {each["part"]: each["ns"] for each in job["parts"]}


def text_of(found: Any) -> str:
    return " ".join(TerminalRenderer().render(report_document([Run(found.run)])).split())


@pytest.mark.thorough
def test_imports_that_fail_are_late_or_of_a_thread(
    launch: Launch, script: Script, packages: Callable[..., dict[str, str]]
) -> None:
    environment = packages({
        "broken.py": SLEEPS.format(0.3) + "import within\nraise RuntimeError('broken')",
        "within.py": SLEEPS.format(0.3),
        "late.py": SLEEPS.format(0.3),
        "threaded.py": SLEEPS.format(0.5),
    })  # fmt: skip
    text = """
        import numpy, threading
        try:
            import broken
        except RuntimeError as error:
            print(error)
        try:
            import not_there
        except ModuleNotFoundError as error:
            print(error)
        def load():
            import late
        load()
        def load():
            import threaded
        thread = threading.Thread(target=load)
        thread.start()
        thread.join()
    """
    found = launch(sys.executable, script(text), environment=environment)
    assert (found.code, found.out) == (0, "broken\nNo module named 'not_there'\n")
    parts = parts_of(found)
    assert parts["imports"] >= 900 * MS
    assert parts["between"] >= 500 * MS, "what a thread imports is no import of the main one"


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
def test_imports_while_the_training_goes_on_are_a_part_of_it(
    launch: Launch, script: Script, packages: Callable[..., dict[str, str]]
) -> None:
    pytest.importorskip("torch", reason="the script loads with PyTorch")
    names = ("before", "in_wait", "in_loop", "after")
    environment = packages({f"{name}.py": SLEEPS.format(0.2) for name in names})
    found = launch(sys.executable, script(LAZY), environment=environment)
    parts = parts_of(found)
    assert parts["imports"] >= 400 * MS
    assert parts["train_wait"] >= 200 * MS
    assert parts["train_compute"] >= 200 * MS
    assert to_json([Run(found.run)])["job"]["first_batch_ns"] >= 200 * MS
    assert "after its loader was first asked" in text_of(found)


@pytest.mark.thorough
def test_packages_without_files_of_archives_and_lazily_loaded_ones(
    launch: Launch, script: Script, packages: Callable[..., dict[str, str]], tmp_path: Path
) -> None:
    environment = packages({
        "spread/one.py": SLEEPS.format(0.1) + "import spread.two",
        "spread/two.py": SLEEPS.format(0.1),
        "lazy.py": SLEEPS.format(0.1) + "value = 7",
        "also_lazy.py": SLEEPS.format(0.1) + "value = 7",
    })  # fmt: skip
    archive = tmp_path / "packed.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("packed/__init__.py", SLEEPS.format(0.1) + "import packed.more, beside")
        file.writestr("packed/more.py", SLEEPS.format(0.1))
        file.writestr("beside.py", SLEEPS.format(0.1))
        file.writestr("only_found.py", SLEEPS.format(0.1))
    environment["PYTHONPATH"] += os.pathsep + str(archive)
    text = """
        import importlib.util, numpy, sys, time
        importlib.util.find_spec("only_found")  # by the loader of all that is in the archive
        import spread.one, packed
        def lazily(name):
            spec = importlib.util.find_spec(name)
            spec.loader = importlib.util.LazyLoader(spec.loader)
            module = sys.modules[name] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            return module
        one, two = lazily("lazy"), lazily("also_lazy")
        time.sleep(0.3)
        print(one.value, importlib.util.find_spec("wave") is not None)
    """
    found = launch(sys.executable, script(text), environment=environment)
    assert (found.code, found.out) == (0, "7 True\n")
    parts = parts_of(found)
    assert parts["imports"] >= 600 * MS
    assert parts["between"] >= 300 * MS, "what the script sleeps before a module is used"


def test_a_script_that_imports_nothing_is_not_recorded(launch: Launch, script: Script) -> None:
    found = launch(sys.executable, script("print(1)"))
    assert (found.code, found.out) == (0, "1\n")
    assert [each.role for each in found.facts] == ["launcher"]


def test_what_loads_a_module_is_as_it_was(
    launch: Launch, script: Script, packages: Callable[..., dict[str, str]]
) -> None:
    code = """
        import numpy, colorsys, unicodedata, packed, sys
        for module in (numpy, colorsys, packed, sys.modules["numpy._core._multiarray_umath"]):
            loader = module.__spec__.loader
            assert not {"exec_module", "create_module"} & vars(loader).keys(), vars(loader)
        print([type(each.__loader__).__name__ for each in (numpy, packed)])
    """
    environment = packages({"packed/__init__.py": ""})
    found = launch(sys.executable, script(code), environment=environment)
    plain = [sys.executable, str(script(code))]
    same = subprocess.run(plain, env=environment, capture_output=True, text=True, check=True)
    assert (found.code, found.out) == (0, same.stdout)
