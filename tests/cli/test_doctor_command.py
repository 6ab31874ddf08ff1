"""``iobench doctor`` looks for what is optional, and says the line that installs the rest."""

from __future__ import annotations

import json
import os
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from iobench.cli import installation, main
from iobench.cli.installation import check_extras, check_plugins, extra_names

HIDE = """\
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name == "eccodes":
            raise ModuleNotFoundError("No module named 'eccodes'", name=name)

sys.meta_path.insert(0, Hidden())
"""


def requiring(monkeypatch, *rows):
    monkeypatch.setattr(installation, "_requirements", lambda: iter(rows))


def test_the_extras_are_those_of_the_project():
    assert {"grib", "netcdf", "torch", "climetlab"} <= set(extra_names())
    assert {"all", "test", "test-all"} & set(extra_names()) == set()


@pytest.mark.thorough
@pytest.mark.timeout(100)
@pytest.mark.parametrize(("asked", "status"), [((), "found"), (("--import",), "ok")])
def test_what_is_there_is_said_with_its_version(iobench, asked, status):
    done = iobench("doctor", "grib", "netcdf", *asked, "--json")
    answer = json.loads(done.stdout)
    assert done.returncode == 0
    assert [check["name"] for check in answer["extras"]] == ["grib", "netcdf"]
    assert {check["status"] for check in answer["extras"]} == {status}
    assert all(package["version"] for check in answer["extras"] for package in check["packages"])
    assert answer["climetlab_plugins"] == []


@pytest.mark.timeout(100)
@pytest.mark.parametrize("asked", [(), ("--import",)])
def test_what_is_installed_but_is_not_there_is_broken(iobench, tmp_path: Path, asked):
    (tmp_path / "sitecustomize.py").write_text(HIDE)
    done = iobench("doctor", "grib", *asked, env=os.environ | {"PYTHONPATH": str(tmp_path)})
    assert done.returncode == 0
    assert "grib  broken" in done.stdout
    assert "eccodes: ModuleNotFoundError: No module named 'eccodes'" in done.stdout
    assert "pip install eccodes" in done.stdout


def test_what_is_missing_is_said_with_the_line_that_installs_it(monkeypatch):
    requiring(monkeypatch, ("grib", "numpy", ">=1"), ("grib", "surely-not-there", ">=2"))
    [check] = check_extras(["grib"])
    assert (check.status, check.install) == ("missing", "pip install 'iobench[grib]'")
    assert [package.reason for package in check.packages] == ["", "not installed"]


def test_what_is_too_old_is_said(monkeypatch):
    requiring(monkeypatch, ("grib", "numpy", ">=99.1"))
    [check] = check_extras(["grib"])
    assert check.status == "broken"
    assert check.packages[0].reason.endswith("expected >=99.1")
    assert check.install == "pip install 'iobench[grib]'"


@pytest.mark.parametrize(
    ("found", "required", "fits"),
    [
        ("1.10", ">=1.9", True),
        ("2.13.0+cpu", ">=2.13", True),
        ("1.7.4.post1", ">=1.7.5", False),
        ("0.24", "==0.24.0", True),
        ("0.25.0", "==0.24.0", False),
        ("1", "", True),
    ],
)
def test_versions_are_compared_as_numbers(found, required, fits):
    assert installation._satisfies(found, required) is fits


def test_a_library_that_ends_python_is_said_and_does_not_end_the_doctor(tmp_path, monkeypatch):
    (tmp_path / "fatal.py").write_text("import os; os._exit(7)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = installation._import_group(["fatal"])
    assert found == {"fatal": "importing it ends Python with exit code 7"}


def test_what_a_library_prints_does_not_get_in_the_way(tmp_path, monkeypatch):
    (tmp_path / "chatty.py").write_text("print('{', end='')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert installation._import_group(["chatty"]) == {"chatty": ""}


def test_importing_leaves_the_home_folder_as_it_is(tmp_path, monkeypatch):
    (tmp_path / "litter.py").write_text("from pathlib import Path; (Path.home() / 'x').touch()")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert installation._import_group(["litter"]) == {"litter": ""}
    assert not (Path.home() / "x").exists()


def test_a_plugin_that_is_missing_is_said_with_its_line(monkeypatch):
    monkeypatch.setattr(installation, "PLUGINS", {"climetlab-maelstrom-nothing": "1.2.3"})
    [check] = check_plugins()
    assert check.status == "missing"
    assert check.install == "pip install --no-deps climetlab-maelstrom-nothing==1.2.3"


def test_a_plugin_is_imported_dataset_by_dataset(monkeypatch):
    pytest.importorskip(
        "climetlab_maelstrom_ens10", reason="climetlab-maelstrom-ens10 is not installed"
    )
    monkeypatch.setattr(installation, "PLUGINS", {"climetlab-maelstrom-ens10": "0.1.1"})
    [check] = check_plugins(imported=True)
    assert (check.status, check.install) == ("ok", "")
    assert [p.name for p in check.packages] == ["maelstrom-ens10", "maelstrom-ens5mini"]


@pytest.mark.parametrize(
    ("reason", "line"),
    [
        ("ModuleNotFoundError: No module named 'tensorflow'", "pip install 'iobench[tensorflow]'"),
        ("ModuleNotFoundError: No module named 'pandas'", "pip install pandas"),
        ("ImportError: libx.so: no such file", "pip install --no-deps 'a==1'"),
    ],
)
def test_the_line_that_mends_it(reason, line):
    assert installation._mend(reason, "a==1", options="--no-deps ") == line


def test_an_unknown_extra_is_said_with_the_nearest(capsys):
    assert main(["doctor", "netcfd"]) == 1
    assert "unknown extra 'netcfd': did you mean netcdf?" in capsys.readouterr().err


def test_what_is_imported_under_another_name_is_not_broken(monkeypatch):
    requiring(monkeypatch, ("gpu", "nvidia-ml-py", ">=12"))
    monkeypatch.setattr(installation, "_version", {"nvidia-ml-py": "13.615"}.get)
    monkeypatch.setattr(
        installation,
        "_import_all",
        lambda groups: {name: "" if name == "pynvml" else "not there" for [name] in groups},
    )
    [check] = check_extras(["gpu"], imported=True)
    assert (check.status, check.packages[0].version) == ("ok", "13.615")


def test_every_package_of_an_extra_that_is_installed_is_looked_for_by_its_own_modules():
    """A wrong name in `MODULES` calls broken what works."""
    brought = packages_distributions()
    by_package = {}
    for module, packages in brought.items():
        for package in packages:
            by_package.setdefault(package.lower().replace("_", "-"), set()).add(module)
    for extra in extra_names():
        for _, name, _ in (row for row in installation._requirements() if row[0] == extra):
            if name in by_package:
                assert installation._module(name).partition(".")[0] in by_package[name]
