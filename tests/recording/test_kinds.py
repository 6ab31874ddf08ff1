import subprocess
import sys
from pathlib import Path

import pytest

from iobench.recording import kinds
from iobench.recording.kinds import Kind, reads_storage, stage_name

ROW = "    VERIFY = 4,"
NEW = '    DECRYPT = 10, Family.LOAD, _READS, "#123456", "#654321", "the decryption of files"\n'
MODULE = """
import importlib.util
import sys

spec = importlib.util.spec_from_file_location("iobench.recording.kinds", sys.argv[1])
kinds = importlib.util.module_from_spec(spec)
sys.modules["iobench.recording.kinds"] = kinds
spec.loader.exec_module(kinds)

import pathlib

from iobench.cli import main
from tests.support.sketched_runs import CONSUMER, SketchedRun

folder = pathlib.Path(sys.argv[2])
MS = 1_000_000
config = {"dataset": "own", "format": "source", "workers": 0, "prefetch": 0, "batch_size": 1}
run, now = SketchedRun({**config, "framework": "workers"}), 0
for batch in range(40):
    run.add(CONSUMER, kinds.Kind.DECRYPT, now, now + 40 * MS, nbytes=9, batch=batch, epoch=0)
    run.wait(batch, now, now + 50 * MS, "consumer", nbytes=9)
    now += 60 * MS
run.shutdown(now, now + MS)
run.round(0, now + MS)
run.write(folder / "run")


def said(name, *options):
    try:
        with (folder / name).open("w") as sys.stdout:
            main(["report", str(folder / "run"), *options])
    except SystemExit as ended:
        assert not ended.code, ended.code
    finally:
        sys.stdout = sys.__stdout__


said("terminal", "--full")
said("markdown", "--markdown")
said("json", "--json")
files = {"html": "html", "trace": "trace.json", "parquet": "parquet"}
for option, suffix in files.items():
    said(option, f"--{option}", str(folder / f"run.{suffix}"))
"""


def test_names_and_traits_of_stages():
    assert stage_name(Kind.SUBMIT_QUEUE) == "submit_queue"
    assert stage_name(Kind.FUSED, "read+decode") == "fused:read+decode"
    assert reads_storage(Kind.READ, "anything")
    assert reads_storage(Kind.FUSED, "read+decode")
    assert not reads_storage(Kind.FUSED, "augment")
    assert not reads_storage(Kind.DECODE)
    assert [kind for kind in Kind if not 0 < kind < 256] == [], "the column of the span file"


def test_a_new_row_is_found_in_every_output(tmp_path: Path):
    pytest.importorskip("pyarrow", reason="writes the table")
    text = Path(kinds.__file__).read_text(encoding="utf-8")
    assert text.count(ROW) == 1
    table = tmp_path / "kinds.py"
    table.write_text(text.replace(ROW, NEW + ROW), encoding="utf-8")
    ran = subprocess.run(
        [sys.executable, "-c", MODULE, table, tmp_path], capture_output=True, text=True, timeout=300
    )
    assert not ran.returncode, ran.stderr
    for name in ("terminal", "markdown", "json", "run.html", "run.trace.json"):
        assert "decrypt" in (tmp_path / name).read_text(encoding="utf-8"), name
    for name in ("terminal", "markdown", "run.html"):
        assert "the decryption of files" in (tmp_path / name).read_text(encoding="utf-8"), name
    page = (tmp_path / "run.html").read_text(encoding="utf-8")
    assert "--kind-decrypt: #123456;" in page
    assert "--kind-decrypt: #654321;" in page
    assert '"cat":"load' in (tmp_path / "run.trace.json").read_text(encoding="utf-8")
    from pyarrow import parquet

    assert "decrypt" in parquet.read_table(tmp_path / "run.parquet")["kind"].unique().to_pylist()
