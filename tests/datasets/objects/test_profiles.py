"""Python objects, by name, through the command line and handed over from Python."""

from __future__ import annotations

import base64
import contextlib
import gzip
import json
import re
import zlib
from pathlib import Path

import numpy as np
import pytest

from iobench.cli import main
from iobench.profiling.config import RunConfig
from iobench.profiling.profile_run import profile
from tests.support.quiet_screen import QuietScreen


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], store_dir: Path):
    """Profile in this process; return the JSON of its runs."""

    def profiled(*arguments: str) -> list[dict]:
        quick = ("--batches", "6", "--compute", "none", "--store-dir", str(store_dir))
        assert main(["profile", *arguments, *quick, "--json"]) == 0
        return json.loads(capsys.readouterr().out)["runs"]

    return profiled


def stages(run: dict) -> set[str]:
    return {row["stage"] for row in run["stages"]}


def test_map_style_object_also_as_a_store(run, own_module) -> None:
    runs = run("mydata:Squares", "--option", "n=12", "--workers", "1", "--format", "source,numpy")
    assert [each["format"] for each in runs] == ["source", "numpy"]
    assert "fused:read+decode+preprocess" in stages(runs[0])
    assert {"read"} <= stages(runs[1])
    assert all(each["nbytes"] == each["samples"] * (2 * 3 * 4 + 8) for each in runs)


def holds(data: bytes, secret: bytes) -> bool:
    """Return whether bytes hold a secret, as they are or deflated as pages have it."""
    pieces = [data]
    for packed in re.findall(rb"[A-Za-z0-9+/]{24,}={0,2}", data):
        with contextlib.suppress(ValueError, zlib.error):
            pieces.append(zlib.decompress(base64.b64decode(packed)))
    with contextlib.suppress(OSError, EOFError, zlib.error):
        pieces.append(gzip.decompress(data))
    return any(secret in piece for piece in pieces)


def test_no_secret_in_any_file_of_probes_runs_and_stores(
    own_module: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A store is verified with its secret given again; without it, it is said which one."""
    secret = b"QQsecretQQ"
    assert holds(base64.b64encode(zlib.compress(b'{"a": "QQsecretQQ"}' * 9)), secret)
    options = ["--option", "api_key=QQsecretQQ", "--option", "url=https://me:QQsecretQQ@host/x"]
    monkeypatch.setenv("IOBENCH_STORE_DIR", str(tmp_path / "places"))
    source = "mydata:signed"
    quick = ("--batches", "6", "--compute", "none", "--workers", "0", "--format", "source,numpy")
    assert main(["profile", source, *options, *quick, "--out", "run"]) == 0
    assert main(["report", "run", "--html", "page.html"]) == 0
    assert main(["convert", source, "store", "--to", "numpy", *options]) == 0
    other = [text.replace("QQsecret", "QQother") for text in options]
    # With another secret it is the same store.
    assert main(["convert", source, "store", "--to", "numpy", *other]) == 0
    request = json.loads(Path("store/iobench.json").read_text())["provenance"]["request"]
    assert request["options"] == {"api_key": "***", "url": "https://***@host/x"}
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert {"iobench.json", "run.json", "page.html"} <= {file.name for file in files}
    assert any("places" in file.parts and file.name == "iobench.json" for file in files)
    assert not [file for file in files if holds(file.read_bytes(), secret)]
    capsys.readouterr()
    assert main(["verify", "store", "--against", source, *options]) == 0
    capsys.readouterr()
    assert main(["verify", "store", "--against", source, *options[:2]]) == 1
    (line,) = [one for one in capsys.readouterr().err.splitlines() if one.startswith("iobench:")]
    assert "--option url" in line
    assert "api_key" not in line


def test_object_handed_over(own_module: Path, tmp_path: Path, store_dir: Path) -> None:
    pairs = [(np.ones(3, "f4") * number, number) for number in range(5)]
    config = RunConfig(
        targets=(pairs,), workers=0, batches=4, compute="none", store_dir=store_dir,
        out=tmp_path / "handed",
    )  # fmt: skip
    path = profile(config, QuietScreen())
    document = json.loads((path / "run.json").read_text())
    assert (document["n_samples"], document["sample_nbytes"]) == (4, 3 * 4 + 8)
