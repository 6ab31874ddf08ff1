"""What commands cannot do is one line that names it: exit code 1, and nothing is left behind."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from iobench.cli import main
from iobench.recording.run_directory import RunDirectory
from iobench.stores.places import make_item
from tests.support.page_runs import write_run

xarray = pytest.importorskip("xarray", reason="writes the files")
pytest.importorskip("h5netcdf", reason="writes the files")
pytest.importorskip("eccodes", reason="reads GRIB")

GRIB = Path(__file__).parents[1] / "data/era5/era5-levels-members.grib"
MODULE = """
import numpy as np

def gridded():
    import xarray
    return xarray.Dataset({"t2m": (("time", "x"), np.ones((6, 3), "f4"))})

class Flowing:
    def __iter__(self):
        yield np.zeros(5, "f4"), 1.0

def broken():
    raise RuntimeError("no-licence")
"""
# A command with its arguments, and a word that its message has to name.
WRONG = {
    "profile": """
        maelstrom-ens1 | maelstrom-ens10
        maelstrom-ens10 --format numpi | numpy
        maelstrom-ens10 --cache hot | as-is
        maelstrom-ens10 --compute soon | 25ms
        maelstrom-ens10 --option date | NAME=VALUE
        maelstrom-ens10 --sample-dim time | --sample-dim
        maelstrom-ens10 --duration nan | --duration
        maelstrom-ens10 --data-dir typo | typo
        maelstrom-ens10 --pipeline upstrem | upstream
        maelstrom-ens10 --pipeline upstream --format numpy | --format
        maelstrom-ens10 --tiny --split trian | train
        typo/x.grib --sample-dim time | typo
        own.nc --data-dir . | --data-dir
        own.nc --epochs 2 --batches 3 | --epochs
        own.nc --prefetch 0 | --prefetch
        own.nc --store-dir notes.txt/stores | --store-dir
        own.nc --variables none | none
        own.nc --format zarr:codc=blosc-lz4 | codec
        own.nc --format zarr:inner-chunk=height=4 | height
        own.nc --format zarr,codec=none | zarr:codec=none
        own.nc --format zarr:codec=none,codec=none | twice
        own.nc --format zarr:codec=none,zarr,zarr:codec=none | all different
        own.nc gone.nc | gone.nc
        notes.txt --sample-dim time | notes.txt
        mine --format zarr | --format
        mine --split train | splits
        mine --window=-1,0:20 | --window
        mine nowhere.zarr | nowhere.zarr
        mine begun | begun
        other.nc mine | own.nc
        mine --out full | full
        mydata:Numberd | Numberd
        mydata:broken | no-licence
        mydata:gridded | --sample-dim
        mydata:Flowing --format numpy | --format
    """,
    "convert": """
        x.grib out --to numpy --sample-dim hour | hour
        x.grib out --to numpy --sample-dim time --format-option a | --format-option
        own.nc out --to zarr --codec zstd --format-option codec=none | --codec
        x.grib out --to numpy --sample-dim time --shard-size 0 | --shard-size
        x.grib out --to numpy --sample-dim time --split train | splits
        x.grib out --to numpy --sample-dim time --dtype float8 | float16
        x.grib out --to numpy --sample-dim time --range t=1:2 | int16
        x.grib x.grib --to numpy --sample-dim time | x.grib
        x.grib full --to numpy --sample-dim time | thesis.tex
        x.grib nowhere://bucket/out --to numpy --sample-dim time | nowhere
        maelstrom-ens10 out --to numpy --target-variables t2m | --target-variables
        own.nc other.nc own.nc out --to numpy | own.nc
        own.nc mine --to numpy --variables t --dry-run | mine
    """,
    "info": """
        empty | GRIB
        maelstrom-downscaling-tier1 --data-dir empty | tier1_2016-04.nc
        own.nc --option day=1 | --option
    """,
    "limits": """
        empty | empty
        mine --duration 0 | --duration
        mine --request much | --request
        s3://bucket/data | s3
    """,
    "run": """
        --json -- true | --json
        --json nowhere/x.json true | nowhere
    """,
    "simulate": """
        RUN --ranks 4..1 | --ranks
        RUN --ranks 1..1000000 | --ranks
        RUN --storage-bandwidth fast | 1GB
        RUN --storage-bandwidth 100Gb/s | bits
        RUN --storage-bandwidth measured | 1GB
        RUN --storage-iops 0 | --storage-iops
        script | script
    """,
    "advise": """
        RUN --tiny | --tiny
        RUN -- python x.py | python x.py
        RUN --try best | free-data
        RUN --try free-data | emulates
        own.nc --try free-data | iobench run
        no-such-data --workers -1 | --workers
        script | batch
    """,
    "check": """
        RUN | compare
        RUN --update | --counts
        RUN --counts c.json --update --max-exposed 5% | --update
        RUN --counts c.json --margin 9% | --margin
        RUN --max-exposed 5% --any-machine | --against
        RUN --counts c.json --update --markdown | --update
        RUN --max-exposed 500% | 5%
        RUN --counts c.json --json --markdown | stdout
    """,
    "compare": """
        RUN | 2
        RUN RUN RUN RUN RUN RUN RUN RUN RUN | 8
        RUN script | script
        RUN torn | run.json
        empty --quarterly | expected the folder of a suite
        RUN --quarterly | recipe.json
    """,
    "verify": """
        empty | iobench.json
        mine --against other.nc | mine
    """,
    "report": """
        empty | run.json
    """,
}
CASES = [
    (f"{command} {words}", key)
    for command, lines in WRONG.items()
    for words, key in (line.strip().split(" | ") for line in lines.strip().splitlines())
]
CASES += [(f"{command} {'n' * 300}.nc", "too long") for command in ("info", "profile", "limits")]


def field(n, **more):
    names = ("t", "u")
    values = {name: (("time", "y", "x"), np.ones((n, 3, 4), "f4"), more) for name in names}
    times = np.datetime64("2020-01-01", "ns") + np.arange(n) * np.timedelta64(6, "h")
    return xarray.Dataset(values, {"time": times})


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder of files, runs and stores, in which nothing else may appear."""
    folder = tmp_path_factory.mktemp("place")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(str(folder))
        patch.setenv("IOBENCH_STORE_DIR", str(tmp_path_factory.mktemp("stores")))
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        field(6).to_netcdf("own.nc", engine="h5netcdf")
        field(4, units="K").to_netcdf("other.nc", engine="h5netcdf")
        shutil.copy(GRIB, "x.grib")
        Path("mydata.py").write_text(MODULE)
        Path("notes.txt").write_text("hello")
        for name in ("empty", "full", "torn"):
            Path(name).mkdir()
        Path("full/thesis.tex").touch()
        Path("torn/run.json").write_text("{")
        write_run(Path("RUN"))
        RunDirectory.create(Path("script"), {"kind": "script"})
        make_item(Path("begun"), kind="store", title="begun")
        assert main(["convert", "own.nc", "mine", "--to", "numpy", "--sample-dim", "time"]) == 0
        yield folder
    sys.modules.pop("mydata", None)


def content(folder):
    found = (path for path in folder.rglob("*") if "__pycache__" not in path.parts)
    return {path: path.read_bytes() if path.is_file() else None for path in found}


@pytest.mark.parametrize(("words", "key"), CASES, ids=[words for words, _ in CASES])
def test_it_is_one_line_that_names_it(place, capsys, monkeypatch, words, key):
    monkeypatch.chdir(place)
    before = content(place)
    assert main(shlex.split(words)) == 1
    said = capsys.readouterr()
    assert said.out == ""
    *notes, line = said.err.splitlines()  # of samples that are chosen, or made
    assert len(notes) <= 3
    assert line.startswith("iobench: ")
    assert key in line
    assert content(place) == before
