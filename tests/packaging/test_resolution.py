"""Extras go beside what training environments pin: a resolver is asked, nothing installed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
UNREACHABLE = re.compile(
    r"error sending request|network was disabled"  # uv
    r"|\(from versions: none\)|NewConnectionError"  # pip
)
ENVIRONMENT = dict(os.environ)
"""With the user's own home, where pip and uv have their settings; tests get another one."""
RUNNING = f"{sys.version_info.major}.{sys.version_info.minor}"

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


def resolve(tmp_path, *requirements, extras=(), python=RUNNING):
    """Return the versions that the resolver chooses for iobench beside the requirements.

    uv, which takes seconds; pip where uv does not see the package index that pip is set up for.
    """
    listed = tmp_path / "requirements.in"
    listed.write_text("\n".join(requirements))
    uv = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--no-header", "--no-annotate"]
    uv += ["--python-version", python, *(f"--extra={name}" for name in extras)]
    answer = _run([*uv, str(ROOT / "pyproject.toml"), str(listed)])
    if answer.returncode == 0:
        return dict(re.findall(r"^([\w.-]+)==(\S+)", answer.stdout, re.MULTILINE))
    if UNREACHABLE.search(answer.stderr) is None:
        pytest.fail(answer.stderr)
    if python != RUNNING:
        pytest.skip(f"uv reaches no package index, and pip here resolves for {RUNNING} alone")
    named = f"[{','.join(extras)}]" if extras else ""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
    report = tmp_path / "report.json"
    answer = _run([*pip, "--report", str(report), f"{ROOT}{named}", *requirements])
    if answer.returncode != 0 and UNREACHABLE.search(answer.stderr) is None:
        pytest.fail(answer.stderr)
    if answer.returncode != 0:
        message = f"no package index can be reached: {answer.stderr.strip().splitlines()[-1]}"
        (pytest.fail if os.environ.get("IOBENCH_INDEX_REQUIRED") else pytest.skip)(message)
    chosen = (item["metadata"] for item in json.loads(report.read_text())["install"])
    return {item["name"].lower(): item["version"] for item in chosen}


def test_base_resolves_beside_anemoi_datasets(tmp_path):
    chosen = resolve(tmp_path, "anemoi-datasets>=0.5.30")
    print({name: chosen[name] for name in ("anemoi-datasets", "zarr", "numcodecs", "numpy")})
    assert tuple(map(int, chosen["zarr"].split("."))) <= (2, 18, 7)
    assert {"numpy", "psutil", "click", "rich", "crc32c"} <= set(chosen)


# What all extras together go beside, any of them does. Of Python 3.13 there is no NumPy 1.26, no
# torch before 2.5, and no reader of Darshan's logs.
@pytest.mark.parametrize(
    ("python", "pins"),
    [
        ("3.11", []),
        ("3.12", []),
        ("3.13", []),
        ("3.11", ["anemoi-datasets>=0.5.30"]),
        ("3.11", ["numpy==1.26.4", "torch==2.4.1", "zarr>=3"]),
        ("3.11", ["numpy==1.26.4", "torch==2.4.1", "zarr==2.18.7"]),
        ("3.12", ["numpy==1.26.4", "torch==2.4.1", "zarr==2.18.7"]),
        ("3.13", ["torch==2.5.0", "zarr==2.18.7"]),
    ],
    ids=lambda value: value if isinstance(value, str) else ", ".join(value) or "the newest",
)
def test_all_extras_resolve_together(tmp_path, python, pins):
    extras = set(PROJECT["optional-dependencies"])
    if {"anemoi-datasets>=0.5.30", "zarr==2.18.7"} & set(pins):  # icechunk needs zarr 3
        extras -= {"icechunk"}
    chosen = resolve(tmp_path, *pins, extras=sorted(extras), python=python)
    print({name: chosen[name] for name in ("numpy", "torch", "zarr", "numcodecs", "xarray")})
    assert ("darshan" in chosen) == (python != "3.13")
    for name, same, version in (pin.partition("==") for pin in pins):
        assert not same or chosen[name] == version


def _run(command):
    return subprocess.run(
        command, capture_output=True, text=True, check=False, cwd="/", env=ENVIRONMENT
    )
