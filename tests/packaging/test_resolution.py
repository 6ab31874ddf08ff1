"""The base goes beside what training environments pin: a resolver is asked, nothing installed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
UNREACHABLE = re.compile(
    r"error sending request|network was disabled"  # uv
    r"|\(from versions: none\)|NewConnectionError"  # pip
)
ENVIRONMENT = dict(os.environ)
"""With the user's own home, where pip and uv have their settings; tests get another one."""

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


def resolve(tmp_path: Path, *requirements: str) -> dict[str, str]:
    """Return the versions the resolver chooses for iobench's base beside the requirements.

    uv, which takes seconds; pip where uv does not see the package index that pip is set up for.
    """
    wanted = [str(ROOT), *requirements]
    listed = tmp_path / "requirements.in"
    listed.write_text("\n".join(wanted))
    uv = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--no-header", "--no-annotate"]
    answer = _run([*uv, "--python", sys.executable, str(listed)])
    if answer.returncode == 0:
        return dict(re.findall(r"^([\w.-]+)==(\S+)", answer.stdout, re.MULTILINE))
    if UNREACHABLE.search(answer.stderr) is None:
        pytest.fail(answer.stderr)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
    report = tmp_path / "report.json"
    answer = _run([*pip, "--report", str(report), *wanted])
    if answer.returncode != 0 and UNREACHABLE.search(answer.stderr) is None:
        pytest.fail(answer.stderr)
    if answer.returncode != 0:
        message = f"no package index can be reached: {answer.stderr.strip().splitlines()[-1]}"
        (pytest.fail if os.environ.get("IOBENCH_INDEX_REQUIRED") else pytest.skip)(message)
    chosen = (item["metadata"] for item in json.loads(report.read_text())["install"])
    return {item["name"].lower(): item["version"] for item in chosen}


def test_base_resolves_beside_anemoi_datasets(tmp_path: Path) -> None:
    chosen = resolve(tmp_path, "anemoi-datasets>=0.5.30")
    print({name: chosen[name] for name in ("anemoi-datasets", "zarr", "numcodecs", "numpy")})
    assert tuple(map(int, chosen["zarr"].split("."))) <= (2, 18, 7)
    assert {"numpy", "psutil", "typer", "rich", "crc32c"} <= set(chosen)


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="numpy 1.26 has no build for this Python")
def test_base_resolves_beside_numpy_1_26(tmp_path: Path) -> None:
    assert resolve(tmp_path, "numpy==1.26.4")["numpy"] == "1.26.4"


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, capture_output=True, text=True, check=False, cwd="/", env=ENVIRONMENT
    )
