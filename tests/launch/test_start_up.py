"""What a Python process does at its start: whose sitecustomize, which imports, what it costs."""

from __future__ import annotations

import os
import sys

import pytest


@pytest.fixture
def site(tmp_path):
    """Write a site's own sitecustomize; return the environment in which Python finds it."""

    def write(text):
        folder = tmp_path / "site"
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(text)
        return {**os.environ, "PYTHONPATH": str(folder)}

    return write


TELL = "import sys; print(sys.modules['sitecustomize'].__file__, getattr(sys, 'theirs', None))"


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    "text",
    [
        "import sys; sys.theirs = (1, __name__, 'iobench' in str(sys.path))",
        "raise ValueError('broken')",
        "import not_there",
        "import numpy, sys; sys.theirs = numpy.ones(2)",
    ],
)
def test_the_sites_own_sitecustomize_runs_as_ever(same, site, text):
    tell = TELL if "raise" not in text and "not_there" not in text else "print(1)"
    found = same(sys.executable, "-c", tell, environment=site(text))
    assert found.code == 0
    assert found.launcher.unseen == []


def test_nothing_is_imported_before_the_script_asks_for_it(launch, plainly):
    tell = "import sys; print(sorted(sys.modules))"
    plain = set(eval(plainly(sys.executable, "-c", tell).stdout))
    loaded = set(eval(launch(sys.executable, "-c", tell).out)) - plain
    assert loaded & {"numpy", "typing", "iobench", "re", "json", "logging", "pathlib"} == set()
    assert "iobench_boot" in loaded


IMPORTS = """
import importlib.util, sys
import iobench_boot
seen = []
class Hooks:
    after = staticmethod(seen.append)
    count_once = staticmethod(lambda spent_ns: None)
sys.modules["iobench.launch.hooks"] = Hooks()
"""


@pytest.fixture
def packages(tmp_path):
    """Stand-ins for big libraries; return the environment in which Python finds them."""
    texts = {
        "torch/__init__.py": "import numpy\nimport torch.utils.data\nwhole = True",
        "torch/utils/__init__.py": "",
        "torch/utils/data/__init__.py": "import sys; half = not hasattr(sys.modules['torch'], 'w')",
        "numpy/__init__.py": "",
        "tensorflow.py": "import numpy",
    }
    for name, text in texts.items():
        path = tmp_path / "packages" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return {**os.environ, "PYTHONPATH": str(tmp_path / "packages")}


def test_hooks_follow_the_whole_import(launch, packages):
    code = IMPORTS + (
        "import torch\nassert seen == ['begin', 'torch'], seen\n"
        "loader = torch.__spec__.loader\n"
        "assert 'exec_module' not in vars(loader) and loader is torch.__loader__\n"
        "assert type(loader).__name__ == 'SourceFileLoader'\n"
        "importlib.reload(torch)\n"
        "import tensorflow\nassert seen[-1] == 'tensorflow', seen\n"
        "print('ok')"
    )
    found = launch(sys.executable, "-c", code, environment=packages)
    assert (found.out, found.err) == ("ok\n", "")


@pytest.mark.parametrize("first", [True, False])
def test_wrapt_and_iobench_both_follow_an_import(launch, packages, first):
    pytest.importorskip("wrapt", reason="a library whose import hooks are widely used")
    theirs = "import wrapt; wrapt.when_imported('torch')(lambda module: seen.append('wrapt'))\n"
    again = "sys.meta_path.insert(0, sys.meta_path.pop(1))\n" if first else ""
    code = IMPORTS + theirs + again + "import torch; print(sorted(seen), torch.whole)"
    found = launch(sys.executable, "-c", code, environment=packages)
    assert (found.out, found.err) == ("['begin', 'torch', 'wrapt'] True\n", "")


BREAKS = """
def fail(name):
    if name == 'tensorflow': raise RuntimeError('unknown version')
Hooks.after = staticmethod(fail)
import tensorflow; print('ok')
try:
    import broken
except RuntimeError as error: print(error)
import not_there
"""


def test_a_hook_or_an_import_that_fails_fails_as_it_would(launch, plainly, packages, tmp_path):
    (tmp_path / "packages" / "broken.py").write_text("raise RuntimeError('no AVX')")
    found = launch(sys.executable, "-c", IMPORTS + BREAKS, environment=packages)
    assert (found.code, found.out) == (1, "ok\nno AVX\n")
    plain = plainly(sys.executable, "-c", "import not_there", env=packages)
    assert found.err.splitlines()[-1] == plain.stderr.splitlines()[-1]
    (unseen,) = found.launcher.unseen
    assert "tensorflow: RuntimeError: unknown version" in unseen
