"""What a script's start and its imports took, package by package, known by what each one sleeps.

A sleep is never shorter than asked for; of another package's sleep nothing may be in a package's
own time, so that is bounded by what the rest of a tiny module takes on a busy machine.
"""

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


def start_of(found: Any) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Return the start of a launched script, and its packages; held against the job's imports."""
    job = to_json([Run.open(found.run)])["job"]
    start = job["start_up"]
    (imports_ns,) = (each["ns"] for each in job["parts"] if each["part"] == "imports")
    own_ns = sum(each["own_ns"] for each in start["packages"])
    assert start["interpreter_ns"] + own_ns + start["rest_ns"] == imports_ns
    assert sum(each["ns"] for each in job["parts"]) == job["wall_ns"]
    return start, {each["package"]: each for each in start["packages"]}


def text_of(found: Any) -> str:
    return " ".join(TerminalRenderer().render(report_document([Run.open(found.run)])).split())


@pytest.mark.thorough
def test_what_a_package_imports_is_its_own_time_and_not_that_of_others(
    launch: Launch, script: Script, packages: Callable[..., dict[str, str]]
) -> None:
    environment = packages({
        "outer/__init__.py": SLEEPS.format(0.15) + "import outer.part, inner\n",
        "outer/part.py": SLEEPS.format(0.15),
        "inner/__init__.py": SLEEPS.format(0.5) + "from inner import part\nimport outer.later\n",
        "inner/part.py": "",
        "outer/later.py": SLEEPS.format(0.1),
    })  # fmt: skip
    found = launch(sys.executable, script("import numpy\nimport outer\n"), environment=environment)
    start, told = start_of(found)
    outer, inner = told["outer"], told["inner"]
    assert 400 * MS <= outer["own_ns"] < 880 * MS  # nothing of the 500 ms of the other one
    assert inner["own_ns"] >= 500 * MS
    assert outer["total_ns"] >= 900 * MS
    assert inner["own_ns"] + 100 * MS <= inner["total_ns"] < outer["total_ns"]
    assert (outer["n_modules"], inner["n_modules"]) == (3, 2)
    assert (outer["place"], told["numpy"]["place"]) == ("another folder", "site-packages")
    assert outer["file_system"] == inner["file_system"]
    assert start["interpreter_ns"] > 0
    assert start["first_batch_ns"] is None
    assert {"numpy", "iobench"} <= told.keys()
    text = text_of(found)
    assert " Start-up " in text
    names = ("inner", "outer")
    slowest = sorted(names, key=lambda name: -told[name]["own_ns"])  # on a busy machine either
    assert sorted(names, key=lambda name: text.index(f" {name} 0.")) == slowest
    assert "The first batch came" not in text


@pytest.mark.thorough
def test_imports_that_fail_are_late_or_of_a_thread(
    launch: Launch, script: Script, packages: Callable[..., dict[str, str]]
) -> None:
    environment = packages({
        "broken.py": SLEEPS.format(0.2) + "import within\nraise RuntimeError('broken')",
        "within.py": SLEEPS.format(0.2),
        "late.py": SLEEPS.format(0.2),
        "threaded.py": SLEEPS.format(0.2),
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
    _, told = start_of(found)
    assert min(told[name]["own_ns"] for name in ("broken", "within", "late")) >= 200 * MS
    assert told["broken"]["n_modules"] == 0
    assert "threaded" not in told
    job = to_json([Run.open(found.run)])["job"]
    assert {each["part"]: each["ns"] for each in job["parts"]}["between"] >= 200 * MS


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
    start, told = start_of(found)
    assert min(told[name]["total_ns"] for name in names) >= 200 * MS
    assert min(told[name]["own_ns"] for name in ("before", "after")) >= 200 * MS
    assert [told[name]["own_ns"] for name in ("in_wait", "in_loop")] == [0, 0]
    assert start["first_batch_ns"] >= 200 * MS
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
    _, told = start_of(found)
    assert told["spread"]["own_ns"] >= 200 * MS
    assert told["spread"]["place"] == "another folder"
    assert told["packed"]["own_ns"] >= 200 * MS
    assert told["beside"]["own_ns"] >= 100 * MS
    assert {told[name]["place"] for name in ("packed", "beside")} == {"an archive"}
    assert told["only_found"]["own_ns"] < 100 * MS
    # When it is used: what the script sleeps before that is no import.
    assert 100 * MS <= told["lazy"]["own_ns"] < 300 * MS
    assert told["also_lazy"]["own_ns"] < 100 * MS


def test_a_script_that_imports_nothing_but_numpy(launch: Launch, script: Script) -> None:
    start, told = start_of(launch(sys.executable, script("import numpy, mailbox\n")))
    assert told["numpy"]["own_ns"] > told["python"]["own_ns"] > 0
    assert told["python"]["place"] == "Python's own library"
    assert start["n_modules"] == sum(each["n_modules"] for each in told.values())


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
