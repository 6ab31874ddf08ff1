"""A bundle: the same figures, none of the names, the same bytes every time."""

from __future__ import annotations

import io
import json
import shlex
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from named_runs import CONFIG, ENVIRONMENT, HOME, HOST, SECRETS, USER
from stand_in_machine import StandInMachine

from iobench.analysis.run import open_runs
from iobench.bundling.bundle import Bundle, make_bundle
from iobench.errors import OptionError, ProfileError
from iobench.profiles.reading import open_profile
from iobench.recording.run_directory import RunDirectory
from iobench.report.json_report import to_json

Write = Callable[..., RunDirectory]
VERSIONS = {"iobench": "0.1.0", "extras": [{"name": "html", "reason": f"{HOME}/x/libfoo.so: no"}]}


def bundled(path: Path, **more: Any) -> Bundle:
    return make_bundle(path, versions=VERSIONS, environment=ENVIRONMENT, **more)


def unpacked(bundle: Bundle, folder: Path) -> Path:
    with tarfile.open(fileobj=io.BytesIO(bundle.packed())) as archive:
        archive.extractall(folder, filter="data")
    return folder / "iobench-bundle"


def without_texts(value: Any) -> Any:
    if isinstance(value, dict):
        return [without_texts(each) for each in value.values()]
    if isinstance(value, list):
        return [without_texts(each) for each in value]
    return "text" if isinstance(value, str) else value


def test_a_whole_bundle_has_the_same_figures_and_none_of_the_names(
    tmp_path: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write(tmp_path / "magrathea" / "run").path
    machine = StandInMachine(tmp_path)
    reader = machine.reader(run, monkeypatch, host=HOST)
    for share in (1.0, 0.5, 0.0):
        reader.read()
        machine.advance(60, cpus=[share] * 4, disk=share)
    reader.finish()
    before = {file: file.read_bytes() for file in run.rglob("*") if file.is_file()}
    bundle = bundled(run)
    folder = unpacked(bundle, tmp_path)
    for file in folder.rglob("*"):
        held = str(file.relative_to(folder)).encode() + file.read_bytes() if file.is_file() else b""
        for secret in (*SECRETS, str(tmp_path)):
            assert secret.encode() not in held.lower(), (secret, file)
    one, two = to_json(open_runs(run)), to_json(open_runs(folder))
    assert without_texts(one) == without_texts(two)
    assert two["runs"][0]["machine_meanwhile"]["machines"][0]["cpu"]["wait_fraction"] > 0.5
    assert json.loads((folder / "report.json").read_text())["runs"][0]["wait_ns"] == 61_000_000
    assert "Exposed I/O: 50 %" in (folder / "report.txt").read_text()
    assert {file: file.read_bytes() for file in run.rglob("*") if file.is_file()} == before


def test_the_same_name_has_one_pseudonym_and_paths_keep_their_form(
    tmp_path: Path, write: Write
) -> None:
    bundle = bundled(write(tmp_path / "run").path)
    folder = unpacked(bundle, tmp_path)
    me = next(each.pseudonym for each in bundle.replacements if each.name == USER)
    profile = open_profile(folder)
    texts = set(profile.strings)
    (data,) = (text for text in texts if text.startswith("~/") and text.endswith(".nc"))
    assert f"{data}:t2m" in texts
    assert data.count("/") == 2
    place = data.split("/")[1]
    config = json.loads((folder / "run.json").read_text())
    assert config["command"].startswith(f"python '~/{place}/file-")
    assert data.rpartition("/")[2] in config["command"]
    assert "--epochs 3" in config["command"]
    assert "--lr 0.1" in config["command"]
    assert config["files_hint"] == f"~/{place}"
    assert config["machine"] == {**CONFIG["machine"], "host": "host-1"}
    assert f"augment by {me}" in texts
    assert "augment:custom" in texts
    assert "read/decode at 3 samples/s" in config["notes"]
    assert {process.host for process in profile.processes} == {"host-1"}
    assert {file.name.rpartition("-")[0].rpartition("-")[0] for file in folder.glob("spans/*")} == {
        "host-1"
    }
    assert profile.facts[0].host == "host-1"
    assert profile.facts[0].loaders[0].kind == "torch.utils.data.DataLoader"


def test_the_same_run_makes_the_same_bytes(tmp_path: Path, write: Write) -> None:
    run = write(tmp_path / "run").path
    data = bundled(run).packed()
    assert data == bundled(run).packed()
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        members = archive.getmembers()
    names = [member.name for member in members]
    assert names == sorted(names)
    assert {(m.mtime, m.uid, m.gid, m.uname, m.gname) for m in members} == {(0, 0, 0, "", "")}


def test_the_manifest_says_what_is_in_it(tmp_path: Path, write: Write) -> None:
    bundle = bundled(write(tmp_path / "run").path)
    manifest = json.loads(bundle.files["MANIFEST.json"])
    assert set(manifest["files"]) == set(bundle.files) - {"MANIFEST.json"}
    assert manifest["replaced"]["host"]["names"] >= 1
    assert manifest["replaced"]["user"]["names"] >= 1
    assert manifest["kept"] == []
    assert {"run.json", "report.txt", "report.json", "versions.json"} <= set(bundle.files)


def test_a_name_can_be_kept(tmp_path: Path, write: Write) -> None:
    run = write(tmp_path / "run").path
    bundle = bundled(run, keep=["magrathea"])
    assert b"~/magrathea/file-" in bundle.files["run.json"]
    assert USER.encode() not in bundle.files["run.json"]
    with pytest.raises(OptionError, match=r"--keep hotblack: is nowhere in the run"):
        bundled(run, keep=["hotblack"])


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize(
    "user", ["data", "read", "wait", "a", "us", "json", "p1", "host", "user-1"]
)
def test_a_user_called_like_a_word_of_reports_wrecks_none(
    tmp_path: Path, write: Write, user: str
) -> None:
    home = f"/home/{user}"
    details = (f"{home}/data/read/{user}.nc", f"/scratch/{user}/read.nc", "read")
    run = write(tmp_path / "run", details=details, config={**CONFIG, "files_hint": home}).path
    environment = {"USER": user, "HOME": home}
    bundle = make_bundle(run, versions={}, environment=environment)
    folder = unpacked(bundle, tmp_path)
    one, two = to_json(open_runs(run)), to_json(open_runs(folder))
    assert without_texts(one) == without_texts(two)
    assert list(one["runs"][0]["exposed_ns"]) == list(two["runs"][0]["exposed_ns"])
    profile = open_profile(folder)
    paths = [text for text in profile.strings if text.endswith(".nc")]
    assert len(paths) == 2
    assert not any(f"/{user}/" in path or path.endswith(f"/{user}.nc") for path in paths)
    me = next(each for each in bundle.replacements if each.name == user)
    assert (me.pseudonym in bundle.manifest["ambiguous"]) is not me.everywhere


def test_runs_of_several_formats_lie_side_by_side(tmp_path: Path, write: Write) -> None:
    for position, name in enumerate(("source", "tfrecord")):
        told = {"format": name, "position": position, "turns": "1f2e3d4c5b6a7988"}
        write(tmp_path / "runs" / name, config={**CONFIG, **told})
    folder = unpacked(bundled(tmp_path / "runs"), tmp_path)
    assert {file.parent.name for file in folder.glob("*/run.json")} == {"source", "tfrecord"}
    one, two = to_json(open_runs(tmp_path / "runs")), to_json(open_runs(folder))
    assert without_texts(one) == without_texts(two)


def test_a_run_that_is_still_written_is_bundled_as_it_is(tmp_path: Path, write: Write) -> None:
    bundle = bundled(write(tmp_path / "run", closed=False).path)
    assert any("still being written" in note for note in bundle.manifest["notes"])
    profile = open_profile(unpacked(bundle, tmp_path))
    assert [process.closed for process in profile.processes] == [False, False]
    assert len(profile.spans) == 24


def test_logs_of_tracers_are_left_out(tmp_path: Path, write: Write) -> None:
    run = write(tmp_path / "run").path
    (run / "darshan").mkdir()
    (run / "darshan" / "zaphodb_python.darshan").write_bytes(b"no log")
    (run / "notes.txt").write_text("slartibartfast")
    bundle = bundled(run)
    assert not any("darshan" in name for name in bundle.files)
    assert any("Logs of a tracer are left out" in note for note in bundle.notes)
    assert any("1 files of the run directory are left out" in note for note in bundle.notes)


def test_a_span_file_nobody_can_read_is_left_out(tmp_path: Path, write: Write) -> None:
    run = write(tmp_path / "run").path
    file = next(iter(sorted((run / "spans").glob("*.spans"))))
    file.write_bytes(b"slartibartfast" + file.read_bytes()[14:])
    bundle = bundled(run)
    assert sum(name.startswith("spans/") for name in bundle.files) == 1
    assert any("left out: without an intact header" in note for note in bundle.notes)


def test_a_run_without_a_report_is_bundled_with_the_reason(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run", {**CONFIG, "workers": "zaphodb"}).path
    bundle = bundled(run)
    assert bundle.files["report.txt"].startswith(b"No report: ")
    assert USER.encode() not in bundle.files["report.txt"]


@pytest.mark.parametrize("content", [None, "", "{", '{"version": 99}', "[]"])
def test_what_is_no_run_is_refused(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "run.json").write_text(content)
    with pytest.raises(ProfileError, match=r"run\.json"):
        bundled(tmp_path)


@pytest.mark.parametrize("odd", ["\x1bmagra", "magra\nothea", "t\tab\x00c", "caf\udce9", "\udce9"])
def test_names_with_control_characters_and_bytes_that_are_no_text(
    tmp_path: Path, write: Write, odd: str
) -> None:
    """Escaped by JSON they hold what are names elsewhere, as of a command with JSON in it."""
    path = f"/data/{odd}/x.nc"
    config = {
        **CONFIG,
        "files_hint": path,
        "command": shlex.join(["python", "a.py", json.dumps({"path": path}), odd]),
        "notes": f"see {path}, by {odd}, \x1bmagrathea\nothea u001bmagra",
        "options": {"place": odd},
    }
    run = write(tmp_path / "run", config=config, details=(path, f"u001bmagra/nothea/{odd}.nc"))
    bundle = bundled(run.path)
    told = odd.encode("utf-8", "backslashreplace").decode()
    assert told in {each.name for each in bundle.replacements}
    document = json.loads(bundle.files["run.json"])
    if any(map(str.isalpha, odd)):
        assert told not in "".join(map(str, document.values()))
    assert document["files_hint"].endswith(".nc")


def test_nothing_is_made_where_a_name_is_left(
    tmp_path: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write(tmp_path / "run").path
    # As if a report told a name of which the scrubber knows, by a way nobody thought of.
    monkeypatch.setattr(
        "iobench.bundling.bundle._reports",
        lambda stage, files: ({"report.txt": f"by {HOST.upper()}".encode()}, []),
    )
    with pytest.raises(ProfileError, match=r"report\.txt: still holds 'vogon-login07.*nothing was"):
        bundled(run)
