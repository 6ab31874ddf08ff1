"""Files behind URLs on the command line: converted, compared and profiled as files here are."""

import json
import shutil
from pathlib import Path

import pytest

from iobench.cli import main
from iobench.files.urls import URL

DATA = Path(__file__).parents[1] / "data"
MEMBERS = DATA / "era5/era5-levels-members.grib"
YR = [
    DATA / f"maelstrom-yr/air_temperature/5GB/{day}.nc" for day in ("20200301T03Z", "20200302T09Z")
]


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def put(bucket, tmp_path):
    """Put files into the bucket's folder ``in``, and copies of them here; return the address."""

    def put_files(*paths):
        (tmp_path / "in").mkdir(exist_ok=True)
        for path in paths:
            shutil.copy(path, tmp_path / "in")
            URL(f"s3://{bucket}/in/{path.name}").write_bytes(path.read_bytes())
        return f"s3://{bucket}/in"

    return put_files


def run(capsys, *arguments):
    code = main([str(argument) for argument in arguments])
    return code, capsys.readouterr()


def content(folder):
    files = {path for path in folder.rglob("*") if path.is_file()}
    return {
        path.relative_to(folder): path.read_bytes()
        for path in files
        if not path.relative_to(folder).parts[0].startswith(".")
    }


@pytest.mark.parametrize(
    ("sources", "pattern", "sample_dim", "to"),
    [((MEMBERS,), "*.grib", "time", "numpy"), (YR, "2020030*.nc", "leadtime", "zarr")],
    ids=["grib", "netcdf"],
)
def test_a_store_of_remote_files_is_that_of_files_here(
    put, capsys, tmp_path, sources, pattern, sample_dim, to
):
    address = put(*sources)
    names = sorted(path.name for path in sources)
    for source, out in (
        ([f"{address}/{pattern}"], "remote"),
        ([f"in/{name}" for name in names], "here"),
        ([(tmp_path / "in" / name).as_uri() for name in names], "by-uri"),
    ):
        code, said = run(capsys, "convert", *source, out, "--to", to, "--sample-dim", sample_dim)
        assert code == 0, said.err
    assert content(tmp_path / "remote") == content(tmp_path / "here")
    assert content(tmp_path / "by-uri") == content(tmp_path / "here")
    code, said = run(capsys, "verify", "remote", "--against", f"{address}/{pattern}")
    assert code == 0, said.err


@pytest.mark.timeout(100)
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_worker_processes_read_for_themselves(put, capsys, monkeypatch):
    monkeypatch.setenv("IOBENCH_STORE_DIR", "stores")
    address = put(MEMBERS)
    code, said = run(
        capsys, "profile", f"{address}/{MEMBERS.name}", "--sample-dim", "time", "--batches", "4",
        "--batch-size", "1", "--workers", "2", "--framework", "workers", "--compute", "none",
        "--json",
    )  # fmt: skip
    assert code == 0, said.err
    (report,) = json.loads(said.out)["runs"]
    assert report["batches"] == 4
    assert report["missing_workers"] == []


def test_what_is_not_there_is_said_in_one_line(put, bucket, capsys):
    address = put(MEMBERS)
    for source, said_of_it in (
        (f"{address}/none.nc", "no such file"),
        (f"{address}/*.nc", "no file matches"),
        ("s3://iobench-nobody-has-this/x.nc", "there is no such bucket"),
    ):
        code, said = run(capsys, "convert", source, "out", "--to", "numpy", "--sample-dim", "time")
        assert code == 1
        (line,) = [text for text in said.err.splitlines() if text.startswith("iobench: ")]
        assert source in line
        assert said_of_it in line
    code, said = run(
        capsys, "profile", f"{address}/{MEMBERS.name}", "--sample-dim", "time", "--cache", "cold"
    )
    assert code == 1
