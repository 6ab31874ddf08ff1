"""No command prints or writes a credential of a URL, an option or a run, whatever goes wrong."""

from __future__ import annotations

import gzip
import io
import json
import os
import shutil
import subprocess
import sys
import traceback
import zipfile
from pathlib import Path

import pytest

from iobench import open_dataset
from iobench.cli import main
from iobench.cli.app import make_app
from iobench.errors import IobenchError, StorageError
from iobench.files.objects import find_below
from iobench.files.urls import URL, as_path
from tests.support.http_files import serve
from tests.support.page_runs import write_run

GRIB = Path(__file__).parents[1] / "data/era5/era5-levels-members.grib"

SECRET = "Zq7Wv9hidden"
"""Of every URL below; no other text has it."""
HOST = "127.0.0.1:9"  # the discard port: refused at once
URLS = {
    "password": f"https://user:{SECRET}@{HOST}/x.nc",
    "query": f"http://{HOST}/x.grib?n=1&token={SECRET}",
    "signed": f"http://{HOST}/d/x.nc?X-Amz-Date=2026&X-Amz-Credential=AK{SECRET}%2Fus"
    f"&X-Amz-Security-Token=t{SECRET}&X-Amz-Signature=s{SECRET}",
    "bucket": f"s3://AKIA:{SECRET}@bucket/x.zarr",
    "unknown-scheme": f"nosuch://user:{SECRET}@host/x.zarr",
    "chain": f"simplecache::https://user:{SECRET}@{HOST}/x.grib",
    "zip": f"zip://inner.nc::https://{HOST}/x.zip?sig={SECRET}&sv=1",
    "ftp": f"ftp://user:{SECRET}@{HOST}/x.nc",
    "token-as-user": f"https://{SECRET}@{HOST}/x.zarr",
    "percent": f"https://user:%40{SECRET}%2F@{HOST}/x.nc",
    "slash": f"https://user:a/{SECRET}@{HOST}/x.nc",
    "fragment": f"https://{HOST}/x.zarr#access_token={SECRET}",
    "azure": f"abfs://box@account.dfs/x.nc?sig={SECRET}",
    "pattern": f"http://user:{SECRET}@{HOST}/*.nc",
}
SHORT = ("password", "signed", "unknown-scheme", "zip", "chain", "slash")

# RUN, STORE and NEW are a run, a store and a name that is free; URL is the URL.
SHORT_LINES = """\
profile URL
profile URL --sample-dim time --batches 2 --format zarr,numpy
profile maelstrom-yr --tiny --option url=URL
profile maelstrom-yr --tiny --data-dir URL
profile URL --out URL
profile maelstrom-yr --tiny --limits URL --batches 2 --no-such-option
profile --no-such-option=URL
run URL
run --out URL -- true
run --name URL -- true
report URL
report RUN --html URL
report RUN --wandb URL
check URL
check RUN --counts URL
check RUN --counts URL --update
check RUN --against URL
compare URL URL
compare RUN URL
compare RUN RUN2 --html URL
advise URL
advise RUN --try URL
simulate URL
simulate RUN --storage-bandwidth URL
simulate RUN --staged URL
stage URL --to NEW
stage RUN --to URL
convert URL NEW --to numpy
convert URL URL --to zarr --dry-run
verify URL
list URL
info URL
info maelstrom-yr --data-dir URL
limits URL
limits RUN --request URL
synthesize URL NEW
synthesize maelstrom-yr URL --tiny
doctor URL
suite URL --dry-run
suite quick --dry-run --json --set dataset=URL
suite quick --out URL --dry-run
""".splitlines()
SLOW = """\
profile maelstrom-yr --tiny --batches 2 --format URL
run -- true URL
report RUN --darshan URL
report RUN --trace URL
report RUN --mlflow URL
advise URL --try 1
convert maelstrom-yr URL --to numpy --tiny
convert maelstrom-yr NEW --to URL --tiny
convert maelstrom-yr NEW --to numpy --tiny --scheduler URL
convert maelstrom-yr NEW --to numpy --tiny --format-option token=URL
convert maelstrom-yr NEW --to numpy --tiny --option url=URL
verify STORE --against URL
verify STORE --option url=URL
synthesize maelstrom-yr NEW --tiny --option url=URL
""".splitlines()


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    words = f"convert maelstrom-yr {folder}/store --to numpy --tiny --store-dir {folder}"
    assert main(words.split()) == 0
    return folder / "store"


@pytest.fixture
def place(tmp_path, monkeypatch):
    """The current folder, with a run and another one."""
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "RUN")
    write_run(tmp_path / "RUN2", read_ms=9)
    for name, value in {
        "IOBENCH_STORE_DIR": str(tmp_path / "stores"),
        "AWS_ENDPOINT_URL": f"http://{HOST}",
        "AWS_ACCESS_KEY_ID": "testing-key",
        "AWS_SECRET_ACCESS_KEY": f"{SECRET}-of-the-environment",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_MAX_ATTEMPTS": "1",
        "WANDB_MODE": "offline",
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    }.items():
        monkeypatch.setenv(name, value)
    return tmp_path


@pytest.fixture
def leaks(capsys):
    """Return what runs a command, and names where it wrote the secret: anywhere in a folder."""

    def run(place, url, line, *, is_right=False, store=None):
        words = [word.replace("URL", url) if "URL" in word else word for word in line.split()]
        capsys.readouterr()
        code = 0
        try:
            code = main(words)
        finally:
            said = capsys.readouterr()
        assert not (is_right and code), said.err
        found = {"stdout": said.out.encode(), "stderr": said.err.encode()}
        for path in place.rglob("*"):
            found[f"name of {path}"] = str(path.relative_to(place)).encode()
            if path.is_file():
                found |= unpacked(str(path), path.read_bytes())
        found |= (
            {str(path): (store / path).read_bytes() for path in find_below(store)} if store else {}
        )
        return [(where, text) for where, text in found.items() if SECRET.encode() in text]

    return run


def unpacked(name, data):
    """Return what a file holds; of an index, what that is packed of."""
    if zipfile.is_zipfile(io.BytesIO(data)):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return {f"{name}: {each}": archive.read(each) for each in archive.namelist()}
    return {name: gzip.decompress(data) if name.endswith(".gz") else data}


def test_every_command_is_asked():
    assert set(make_app().commands) == {line.split()[0] for line in SHORT_LINES}


@pytest.mark.parametrize(("number", "line"), list(enumerate(SHORT_LINES)))
def test_no_command_tells_a_secret(place, leaks, number, line):
    assert leaks(place, URLS[SHORT[number % len(SHORT)]], line) == []


@pytest.mark.long
@pytest.mark.parametrize("line", [*SHORT_LINES, *SLOW])
@pytest.mark.parametrize("name", URLS)
def test_no_command_tells_a_secret_of_any_url(place, leaks, request, name, line):
    if "STORE" in line:
        shutil.copytree(request.getfixturevalue("store"), place / "STORE")
    assert leaks(place, URLS[name], line) == []


RIGHT = {
    "signed": f"http://SERVER/x.grib?X-Amz-Signature={SECRET}&token={SECRET}",
    "password": f"http://user:{SECRET}@SERVER/x.grib",
    "sas": f"http://SERVER/x.grib?sv=2024-11-04&sp=r&sig={SECRET}",
}
DONE = (
    "convert URL OUT --to numpy --sample-dim time",
    "verify OUT --against URL",
)
DONE_WITH_IT = (
    "profile URL --sample-dim time --batches 2 --batch-size 1 --compute none --format numpy",
    "suite quick --out SUITE --set dataset=URL --set format=source --set workers=0 --set repeats=1 "
    "--set drop=0 --set tiny=false --set sample-dim=time --set batches=2 --set batch-size=1",
    "convert URL BUCKET/store --to zarr --sample-dim time",
    "verify BUCKET/store --against URL",
    "info OUT --json",
    "report MADE --html page.html",
    "report MADE --json",
    "compare MADE MADE",
    "advise MADE",
    "check MADE --counts counts.json --update",
    "simulate MADE",
    "list --json",
)


@pytest.fixture
def right(tmp_path_factory):
    """A server of a file, and what URLs of it are by name."""
    folder = tmp_path_factory.mktemp("served")
    shutil.copy(GRIB, folder / "x.grib")
    with serve(folder, SECRET) as server:
        host = f"127.0.0.1:{server.server_port}"
        yield server, {name: url.replace("SERVER", host) for name, url in RIGHT.items()}


@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    "name", [pytest.param(e, marks=[pytest.mark.long] * (e != "password")) for e in RIGHT]
)
def test_what_is_read_through_a_right_url_is_done_and_tells_no_secret(
    place, bucket, right, leaks, name
):
    store = as_path(f"s3://{bucket}/store")
    for line in (*DONE, *DONE_WITH_IT) if name == "signed" else DONE:
        made = next(map(str, Path("iobench-runs").glob("*")), "")
        line = line.replace("MADE", made).replace("BUCKET", f"s3://{bucket}")
        assert leaks(place, right[1][name], line, is_right=True, store=store) == [], line


def test_a_conversion_that_is_cut_off_keeps_no_secret_in_its_journal(place, right, leaks):
    pytest.importorskip("obstore", reason="asks web servers")
    server, urls = right
    line = "convert URL OUT --to tfrecord --sample-dim time --shard-size 1 --workers 1"
    assert leaks(place, urls["signed"], line.replace("OUT", "WHOLE"), is_right=True) == []
    for n_left in range(2, 40, 2):  # until it is cut off after its first sample
        server.n_left = n_left
        assert leaks(place, urls["signed"], line) == []
        if list(place.glob("OUT/iobench.journal/*")):
            break
    else:
        raise AssertionError("it was never cut off between its samples")
    server.n_left = -1
    assert leaks(place, urls["signed"], line, is_right=True) == []


def test_a_url_shows_no_secret_and_opens_with_it():
    for text in (*URLS.values(), *RIGHT.values()):
        url = URL(text)
        shown = [str(url), repr(url), f"{url}", url.name, url.stem, f"{url / 'x'}", f"{url.parent}"]
        assert not [one for one in shown if SECRET in one]
        assert SECRET in url.with_secrets()
        assert SECRET in (url / "below").with_secrets()
        with pytest.raises(TypeError):
            os.fspath(url)


def test_a_run_of_an_older_iobench_tells_its_secrets_to_nobody(place, leaks):
    document = json.loads(Path("RUN/run.json").read_text())
    document["command"] = f"iobench profile {URLS['signed']}"
    document["options"] = {"token": SECRET, "source": URLS["password"]}
    Path("RUN/run.json").write_text(json.dumps(document))
    other = Path("other")
    other.mkdir()
    for line in ("report RUN --json", "report RUN --html other/a.html",
                 "compare RUN RUN2 --html other/b.html", "advise RUN"):  # fmt: skip
        assert leaks(other, "", line) == [], line


FAILS = """
import sys
from iobench.cli import main, info_command
def fails(*_):
    raise RuntimeError("unforeseen: " + sys.argv[2])
if sys.argv[1] == "info":
    info_command.dataset_names = fails
sys.exit(main())
"""


def test_the_program_itself_tells_no_secret_in_messages_or_tracebacks(place):
    pytest.importorskip("obstore", reason="asks web servers")
    for words in (["convert", URLS["query"], "NEW", "--to", "zarr"], ["info", URLS["password"]]):
        done = subprocess.run(
            [sys.executable, "-c", FAILS, *words],
            capture_output=True, text=True, timeout=100, check=False, env=os.environ,
        )  # fmt: skip
        assert done.returncode in (1, 69), done.stderr  # 69: without what reads https
        assert "***" in done.stderr or "/x." in done.stderr
        assert SECRET not in done.stdout + done.stderr
    assert "RuntimeError: unforeseen: " in done.stderr


def test_errors_of_the_library_tell_no_secret():
    with pytest.raises(IobenchError) as raised:
        open_dataset(URLS["zip"])
    assert SECRET not in "".join(traceback.format_exception(raised.value))
    assert SECRET not in repr(StorageError(5, f"cannot reach {URLS['password']}"))
