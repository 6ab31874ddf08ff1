"""What is installed beside iobench, of its extras and of CliMetLab's plugins.

Libraries are found, and imported where that is asked for: each in a process of its own, since one
that crashes, or writes files into the home folder when first imported (climetlab), does so there.
"""

from __future__ import annotations

import json
import os
import platform
import re
import site
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, distribution, requires, version
from importlib.util import find_spec
from typing import Any

from iobench.frozen import frozen

UNIONS = ("all", "test", "test-all")
"""Extras made of other ones."""
MODULES = {
    "dask": "dask.array",
    "mlflow-skinny": "mlflow",
    "netcdf4": "netCDF4",
    "nvidia-dali-cuda120": "nvidia.dali",
    "nvidia-ml-py": "pynvml",
    "pillow": "PIL",
    "pytest-xdist": "xdist",
    "types-psutil": "psutil-stubs",
    "tensorflow-cpu": "tensorflow",
}
"""What a package is imported as, where that is not its name."""
ALTERNATIVES = {"tensorflow-cpu": ("tensorflow",), "mlflow-skinny": ("mlflow",)}
"""Packages that bring the same modules under another name."""
# No dependencies: those of power-production forbid the climetlab the others need, and yr's hold
# packages that shadow the standard library. climetlab itself brings all that they use.
PLUGINS = {
    "climetlab-maelstrom-yr": "0.6.3",
    "climetlab-maelstrom-radiation": "0.7.5",
    "climetlab-maelstrom-ens10": "0.1.1",
    "climetlab-maelstrom-downscaling": "0.4.0",
    "climetlab-maelstrom-power-production": "0.2.2",
}
AT_ONCE = 4
"""Imports wait for files more than they compute."""
TIMEOUT_S = 120
PROBE = """\
import importlib, json, sys
found = {}
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except BaseException as error:
        found[name] = f"{type(error).__name__}: {error}".partition(chr(10))[0]
    else:
        found[name] = ""
print(chr(10) + json.dumps(found))
"""


@frozen
class Package:
    """One package of an extra, or one dataset of a plugin.

    ``version`` is "" where it is not installed, ``reason`` says why it cannot be used, "" if it
    can.
    """

    name: str
    required: str
    version: str
    reason: str


@frozen
class Check:
    """An extra or a plugin.

    Parameters
    ----------
    name : str
        The extra's name, or the plugin's package.
    status : str
        ``found`` (installed), ``ok`` (and imports), ``missing`` (something is not installed) or
        ``broken`` (installed, not usable).
    packages : tuple of Package
        What it consists of.
    install : str
        The line that installs what is missing, "" if nothing is.
    """

    name: str
    status: str
    packages: tuple[Package, ...]
    install: str


def described(checks: Sequence[Check], plugins: Sequence[Check]) -> dict[str, Any]:
    """Return checks as one document, with the versions of iobench and Python."""
    return {
        "iobench": version("iobench"),
        "python": platform.python_version(),
        "extras": [asdict(check) for check in checks],
        "climetlab_plugins": [asdict(check) for check in plugins],
    }


def extra_names() -> list[str]:
    """Return the names of iobench's extras, without those made of other ones."""
    return sorted({extra for extra, _, _ in _requirements()} - {*UNIONS})


def check_extras(names: Sequence[str], *, imported: bool = False) -> list[Check]:
    """Find, or import, every package of these extras and say which of them are complete."""
    wanted = [row for row in _requirements() if row[0] in names]
    versions = {name: _installed_version(name) for _, name, _ in wanted}
    modules = {name: _module(name) for name, found in versions.items() if found}
    tried = _import_all if imported else _find_all
    reasons = tried([[module] for module in sorted(set(modules.values()))])
    checks = []
    for extra in names:
        packages = []
        for _, name, required in (row for row in wanted if row[0] == extra):
            found = versions[name]
            reason = reasons[modules[name]] if found else "not installed"
            if found and not reason and not _satisfies(found, required):
                reason = f"version {found}, expected {required}"
            packages.append(Package(name, required, found, reason))
        checks.append(_check_of_extra(extra, packages, there="ok" if imported else "found"))
    return checks


def check_plugins(*, imported: bool = False) -> list[Check]:
    """Find, or import, every dataset of CliMetLab's MAELSTROM plugins; say which can be used."""
    points = {name: _entry_points(name) for name in PLUGINS}
    modules = [sorted({module for _, module in found}) for found in points.values() if found]
    reasons = (_import_all if imported else _find_all)(modules)
    checks = []
    for plugin, required in PLUGINS.items():
        pinned = f"{plugin}=={required}"
        found = _version(plugin)
        datasets = tuple(
            Package(name, "", found, reasons[module]) for name, module in points[plugin]
        )
        if not found:
            missing = Package(plugin, f"=={required}", "", "not installed")
            line = f"pip install --no-deps {pinned}"
            checks.append(Check(plugin, "missing", (missing,), line))
            continue
        wrong = [package.reason for package in datasets if package.reason]
        status = "broken" if wrong or not datasets else "ok" if imported else "found"
        line = _mend(wrong[0], pinned, options="--no-deps ") if wrong else ""
        checks.append(Check(plugin, status, datasets, line))
    return checks


def _check_of_extra(extra: str, packages: Sequence[Package], *, there: str) -> Check:
    wrong = [package for package in packages if package.reason]
    if not wrong:
        return Check(extra, there, tuple(packages), "")
    broken = [package for package in wrong if package.version]
    if not broken or all(package.reason.startswith("version ") for package in broken):
        status = "broken" if broken else "missing"
        return Check(extra, status, tuple(packages), f"pip install 'iobench[{extra}]'")
    first = next(package for package in broken if not package.reason.startswith("version "))
    line = _mend(first.reason, f"{first.name}{first.required}", options="--force-reinstall ")
    return Check(extra, "broken", tuple(packages), line)


def _mend(reason: str, requirement: str, *, options: str) -> str:
    """Return the line that most likely makes an import work that failed for ``reason``."""
    lacks = re.match(r"ModuleNotFoundError: No module named '([\w]+)", reason)
    if lacks and lacks[1] in ("tensorflow", "climetlab"):
        return f"pip install 'iobench[{lacks[1]}]'"
    if lacks:
        return f"pip install {lacks[1]}"
    return f"pip install {options}'{requirement}'"


def _requirements() -> Iterator[tuple[str, str, str]]:
    """Yield (extra, package, versions) of all iobench's extras that this system can have."""
    for line in requires("iobench") or []:
        requirement, _, marker = line.partition(";")
        extra = re.search(r"extra == ['\"]([\w-]+)['\"]", marker)
        parts = re.match(r"\s*([\w.-]+)(?:\[[^\]]*\])?\s*(.*?)\s*$", requirement)
        if not extra or not parts:
            continue
        system = re.search(r"sys_platform == ['\"](\w+)['\"]", marker)
        if not system or system[1] == sys.platform:
            yield extra[1], parts[1].lower(), parts[2].strip("()")


def _module(name: str) -> str:
    return MODULES.get(name, name.replace("-", "_"))


def _installed_version(name: str) -> str:
    candidates = (_version(other) for other in (name, *ALTERNATIVES.get(name, ())))
    return next(filter(None, candidates), "")


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _entry_points(plugin: str) -> list[tuple[str, str]]:
    """Return (dataset, module) for each dataset an installed plugin brings."""
    try:
        points = distribution(plugin).entry_points
    except PackageNotFoundError:
        return []
    return sorted((p.name, p.module) for p in points if p.group == "climetlab.datasets")


def _satisfies(found: str, required: str) -> bool:
    """Return whether a version is one of those required; signs other than >= and == count as so."""
    for sign, wanted in re.findall(r"(>=|==)\s*([\w.]+)", required):
        have, want = _numbers(found), _numbers(wanted)
        length = max(len(have), len(want))
        have, want = (side + (0,) * (length - len(side)) for side in (have, want))
        if have < want or (sign == "==" and have != want):
            return False
    return True


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", re.split(r"[a-z+]", text)[0]))


def _find_all(groups: Sequence[Sequence[str]]) -> dict[str, str]:
    """Look for the packages that modules are in; return for each why not, "" if it is there."""
    return {name: _not_found(name.partition(".")[0]) for group in groups for name in group}


def _not_found(package: str) -> str:
    try:
        return "" if find_spec(package) else f"ModuleNotFoundError: No module named {package!r}"
    except (ImportError, ValueError) as error:
        return f"{type(error).__name__}: {error}"


def _import_all(groups: Sequence[Sequence[str]]) -> dict[str, str]:
    """Import modules, each group in a process of its own; return for each why not, "" if it can."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = pool.map(_import_group, groups)
        return {name: reason for group in found for name, reason in group.items()}


def _import_group(modules: Sequence[str]) -> dict[str, str]:
    with tempfile.TemporaryDirectory(prefix="iobench-doctor-") as home:
        environment = {**os.environ, "HOME": home, "PYTHONUSERBASE": site.getuserbase()}
        command = [sys.executable, "-P", "-W", "ignore", "-c", PROBE, *modules]
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                env=environment,
                timeout=TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return dict.fromkeys(modules, f"import did not finish within {TIMEOUT_S} s")
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        return dict.fromkeys(modules, f"importing it ends Python with exit code {done.returncode}")
    found: dict[str, str] = json.loads(lines[-1])
    return found
