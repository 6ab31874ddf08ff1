"""What a refusal of data proposes is run on the case itself, and works.

Each row makes a case, has it refused, takes out of the message what it proposes, and runs that.
"""

from __future__ import annotations

import fcntl
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest

import iobench
from iobench.cli import main
from iobench.errors import IobenchError

if TYPE_CHECKING:
    from collections.abc import Callable

xarray = pytest.importorskip("xarray", reason="writes the files")
zarr = pytest.importorskip("zarr", reason="writes the stores")

TO = "convert {} out --to numpy"
PROFILE = "--compute none --batches 1 --out run"


class Refusal(NamedTuple):
    """A case that is refused."""

    make: Callable[[], Any]  # writes the files of the case; what it returns is held until the end
    refused: str  # what is run: words of ``iobench``, or a line of Python after ``>>>``
    advice: str  # pattern of what the message proposes
    # lines that do it, as ``refused`` or, after ``$``, of a shell; ``{name}`` are groups of
    # ``advice``. Each has to work
    then: str


def field(name: str = "t", n: int = 6, start: int = 0, **more: Any) -> Any:
    values = np.arange(n * 12, dtype="f4").reshape(n, 3, 4) + start
    times = np.datetime64("2020-01-01", "ns") + np.arange(start, start + n) * np.timedelta64(6, "h")
    return xarray.Dataset({name: (("time", "y", "x"), values)}, {"time": times, **more})


def netcdf(made: Any = None, name: str = "a.nc", **more: Any) -> Path:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    (field() if made is None else made).to_netcdf(path, engine="h5netcdf", **more)
    return path


def zarr_store(name: str = "a.zarr", made: Any = None, **more: Any) -> Path:
    settings = {"consolidated": True, "zarr_format": 2, **more}
    (field() if made is None else made).to_zarr(name, **settings)
    return Path(name)


def edited(path: Path, change: Callable[[Any], Any]) -> None:
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def finished_store(more: str = "") -> None:
    netcdf()
    assert main(f"{TO.format('a.nc')} {more}".split()) == 0


def locked() -> Any:
    file = netcdf()
    held = file.open("rb")
    fcntl.flock(held, fcntl.LOCK_EX)
    return held


def two(one: Any, other: Any) -> None:
    netcdf(one, "a.nc")
    netcdf(other, "b.nc")


REFUSALS = {
    # Containers
    "a finished store": Refusal(
        finished_store, "convert out again --to zarr",
        r"itself: iobench (?P<do>profile \S+), (?P<call>iobench\.loader\(.*\))$",
        f"{{do}} {PROFILE}\n>>> next(iter({{call}}))",
    ),
    # Files that are damaged, locked or of another layout
    "cut short": Refusal(
        lambda: Path("a.nc").write_bytes(netcdf().read_bytes()[:-900]), TO.format("a.nc"),
        "(?P<do>fetch the file again)", ">>> netcdf()\n" + TO.format("a.nc"),
    ),
    "a lock": Refusal(
        locked, TO.format("a.nc"),
        r"is locked: end the program that writes it, or set (?P<do>\S+=FALSE)$",
        "$ env {do} iobench " + TO.format("a.nc"),
    ),
    "group": Refusal(
        lambda: netcdf(group="deep"), TO.format("./a.nc"), r"name one: (?P<one>\S+)$",
        TO.format("{one}"),
    ),
    # Dimensions and variables
    "sample dimension": Refusal(
        lambda: netcdf(field().isel(time=0, drop=True)), TO.format("a.nc"),
        r"with (?P<do>--sample-dim); dimensions \(lengths\): (?P<dim>\w+)",
        TO.format("a.nc") + " {do} {dim}",
    ),
    "no such dimension": Refusal(
        netcdf, TO.format("a.nc") + " --sample-dim tme", r"dimensions \(lengths\): (?P<dim>\w+)",
        TO.format("a.nc") + " --sample-dim {dim}",
    ),
    "no such variable": Refusal(
        netcdf, TO.format("a.nc") + " --target-variables q",
        r"^iobench: (?P<option>--\S+): no variable q; the files have (?P<name>\w+)",
        TO.format("a.nc") + " {option} {name}",
    ),
    "not of all": Refusal(
        lambda: two(field().assign(q=field()["t"]), field(start=6)), TO.format("a.nc b.nc"),
        r"or take what all have: (?P<do>--variables \w+)$", TO.format("a.nc b.nc") + " {do}",
    ),
    "another latitude": Refusal(
        lambda: two(field(y=[0.0, 1, 2]), field(start=6, y=[0.0, 1, 3])), TO.format("a.nc b.nc"),
        r"(?P<do>drop_vars\('y'\)) leaves it out$",
        ">>> xarray.open_dataset('b.nc').{do}.to_netcdf('new.nc')\n" + TO.format("a.nc new.nc"),
    ),
    # Zarr
    "no metadata": Refusal(
        lambda: edited(zarr_store() / ".zmetadata", lambda each: each.pop("metadata")),
        TO.format("a.zarr"), r"again: (?P<do>zarr\..*\))$", ">>> {do}\n" + TO.format("a.zarr"),
    ),
    # Splits and windows
    "no splits": Refusal(
        netcdf, TO.format("a.nc") + " --split train", "(?P<do>leave out --split)$",
        TO.format("a.nc"),
    ),
    "a window of several dimensions": Refusal(
        netcdf, ">>> iobench.open_dataset('a.nc', sample_dim='time,y').loader(2, window='0:1')",
        r"name one of them, as (?P<do>window='.*')$",
        ">>> iobench.open_dataset('a.nc', sample_dim='time,y').loader(2, {do})",
    ),
    # What is stored
    "beyond float16": Refusal(
        lambda: netcdf(field() + 1e5), TO.format("a.nc") + " --dtype float16",
        r"convert to a new (?P<where>folder) with (?P<do>--dtype t=int16)",
        TO.format("a.nc").replace("out", "{where}") + " {do}",
    ),
    "beyond a range": Refusal(
        netcdf, TO.format("a.nc") + " --dtype int16 --range t=0:1",
        r"to a new (?P<where>folder) with a wider (?P<do>--range t)=LOW:HIGH$",
        TO.format("a.nc").replace("out", "{where}") + " --dtype int16 {do}=0:100",
    ),
    "little memory": Refusal(
        lambda: netcdf(encoding={"t": {"chunksizes": (6, 3, 4), "zlib": True}}),
        TO.format("a.nc") + " --memory 1B", r"works is (?P<do>--memory \S+)$",
        TO.format("a.nc") + " {do}",
    ),
    "another store": Refusal(
        lambda: (finished_store(), netcdf(field(n=3))), TO.format("a.nc"),
        r"(?P<do>remove it or choose another folder)$",
        TO.format("a.nc").replace("out", "other"),
    ),
    "an unfinished store": Refusal(
        lambda: (finished_store(), Path("out/iobench.json").unlink()), f"profile ./out {PROFILE}",
        r"(?P<do>run its conversion again) to finish it", TO.format("a.nc"),
    ),
    "a damaged store": Refusal(
        lambda: (finished_store(), next(Path("out").glob("*.npy")).write_bytes(b"x")),
        "verify out", r"(?P<do>convert) to a new folder$",
        "{do} a.nc new --to numpy\nverify new",
    ),
}  # fmt: skip


def run(line: str) -> str:
    """Run a line; return its refusal, or nothing where it works."""
    if line.startswith(">>> "):
        try:
            exec(line[4:], globals() | {"iobench": iobench})
        except IobenchError as error:
            return str(error)
        return ""
    if line.startswith("$ "):
        words = shlex.split(line[2:])
        if "iobench" in words:
            at = words.index("iobench")
            words[at : at + 1] = [sys.executable, "-P", "-m", "iobench"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
        return done.stderr if done.returncode else ""
    return line if main(shlex.split(line)) else ""


@pytest.mark.quick_cases(6)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", REFUSALS)
def test_what_a_refusal_proposes_works(tmp_path, monkeypatch, capsys, case):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("IOBENCH_STORE_DIR", str(tmp_path / "kept"))
    monkeypatch.setenv("IOBENCH_LIMITS", "off")
    row = REFUSALS[case]
    held = row.make()
    capsys.readouterr()
    message = run(row.refused)
    assert message, "it is not refused"
    if not row.refused.startswith(">>>"):
        message = capsys.readouterr().err.strip().splitlines()[-1]
    found = re.search(row.advice, message)
    assert found, message
    for line in row.then.format(**found.groupdict()).splitlines():
        assert not run(line), (message, line, capsys.readouterr().err)
    del held
