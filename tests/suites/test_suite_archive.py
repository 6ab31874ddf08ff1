"""Archives of suites: what is packed is proven by what is in it, whatever is changed is told."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import shutil
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[1] / "support"))

from measured_suites import write_suite

from iobench.bundling.archive import packed
from iobench.cli import main
from iobench.errors import ProfileError
from iobench.suites.recipe import SuiteRecipe
from iobench.suites.results import FAILED, Result, read_results, write_result
from iobench.suites.suite_archive import FOLDER, pack, verify

pytest.importorskip("xxhash", reason="digests of samples need it")

REPEATS = 3
Files = dict[str, bytes]


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a suite of two cells."""
    place = tmp_path_factory.mktemp("packed")
    tables = {
        "suite": {"name": "small", "repeats": REPEATS, "drop": 1},
        "fixed": {
            "dataset": "maelstrom-ens10", "tiny": True, "batches": 4, "batch-size": 2,
            "digests": True, "compute": "1ms", "energy": "off", "device": "none",
        },
        "vary": {"format": ["numpy", "tfrecord"]},
    }  # fmt: skip
    return write_suite(place / "suite", place / "stores", tables)


@pytest.fixture(scope="module")
def archive(suite: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("archive") / "small.tar.gz"
    pack(suite, found, versions={"python": "3"}, environment={"USER": "alice"})
    return found


def read(archive: Path) -> Files:
    with tarfile.open(archive) as opened:
        return {
            member.name.removeprefix(f"{FOLDER}/"): opened.extractfile(member).read()  # type: ignore[union-attr]
            for member in opened
        }


def written(tmp_path: Path, files: Files, *, told: bool) -> Path:
    """Write an archive of files; ``told`` by somebody who brings its manifest up to date."""
    if told:
        manifest = json.loads(files["MANIFEST.json"])
        manifest["files"] = {
            name: {"nbytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            for name, data in files.items()
            if name != "MANIFEST.json"
        }
        files = files | {"MANIFEST.json": json.dumps(manifest).encode()}
    found = tmp_path / "changed.tar.gz"
    found.write_bytes(packed(FOLDER, files))
    return found


def changed_json(files: Files, name: str, change: Callable[[Any], None]) -> None:
    value = json.loads(files[name])
    change(value)
    files[name] = json.dumps(value).encode()


def test_runs_by_an_application_s_own_loading_are_of_their_cell(tmp_path: Path) -> None:
    """It brings its own framework, whatever the recipe has for others."""
    pytest.importorskip("climetlab_maelstrom_ens10", reason="it is what loads")
    tables = {
        "suite": {"name": "theirs", "repeats": 1, "drop": 0},
        "fixed": {
            "dataset": "maelstrom-ens10", "tiny": True, "batches": 2, "compute": "none",
            "energy": "off", "device": "none", "pipeline": "upstream",
        },
        "vary": {"framework": ["native"]},
    }  # fmt: skip
    suite = write_suite(tmp_path / "suite", tmp_path / "stores", tables)
    found = tmp_path / "theirs.tar.gz"
    pack(suite, found, versions={}, environment={})
    told = verify(found)
    assert told.wrong == ()
    assert told.n_figures > 0


def test_an_archive_holds_and_all_figures_are_made_again(archive: Path, suite: Path) -> None:
    found = verify(archive)
    assert found.wrong == ()
    assert found.notes == ()
    assert found.n_results == 2 * REPEATS
    assert found.n_figures == sum(len(each.figures) for each in read_results(suite))


def test_the_same_suite_makes_the_same_bytes(suite: Path, tmp_path: Path) -> None:
    one, two = tmp_path / "one.tar.gz", tmp_path / "two.tar.gz"
    for each in (one, two):
        pack(suite, each, versions={"python": "3"}, environment={"USER": "alice"})
    assert one.read_bytes() == two.read_bytes()


def test_it_unpacks_to_a_folder_of_results(archive: Path, suite: Path, tmp_path: Path) -> None:
    with tarfile.open(archive) as opened:
        opened.extractall(tmp_path, filter="data")
    there = {(each.cell["format"], each.round): each.figures for each in read_results(tmp_path)}
    assert there == {(e.cell["format"], e.round): e.figures for e in read_results(suite)}


def test_no_name_is_in_it(suite: Path, tmp_path: Path) -> None:
    folder, archive = tmp_path / "of-alice", tmp_path / "a.tar.gz"
    shutil.copytree(suite, folder)
    whole = json.loads((folder / "recipe.json").read_text())
    del whole["fixed"]["dataset"]
    whole["vary"]["dataset"] = [["maelstrom-ens10"], ["/home/alice/rainfall/gauges.nc"]]
    recipe = SuiteRecipe.from_json(whole, where="here")
    (folder / "recipe.json").write_text(json.dumps(recipe.to_json()))
    for path in folder.rglob("*.result.json"):
        told = json.loads(path.read_text()) | {"recipe_digest": recipe.digest}
        path.write_text(json.dumps(told))
    for cell in recipe.cells():
        if cell.values["dataset"].startswith("/"):
            result = Result(
                recipe.name, recipe.digest, cell.values, 0, FAILED, "2026-11-27T22:00:00Z",
                reason="/home/alice/rainfall/gauges.nc: is missing; ask bob@weather.example",
                options={key: " ".join(each) for key, each in cell.options.items()},
            )  # fmt: skip
            (folder / "cells" / cell.folder).mkdir()
            write_result(folder / "cells" / cell.folder, result)
    pack(folder, archive, versions={}, environment={"USER": "alice", "HOME": "/home/alice"})
    for name, data in read(archive).items():
        for secret in ("alice", "rainfall", "gauges", "weather.example", "workstation"):
            assert secret.encode() not in data, name
    found = verify(archive)
    assert found.wrong == ()
    assert sum(": failed: " in note for note in found.notes) == 2


def test_what_was_not_measured_is_told(suite: Path, tmp_path: Path) -> None:
    folder, archive = tmp_path / "suite", tmp_path / "a.tar.gz"
    shutil.copytree(suite, folder)
    cells = sorted((folder / "cells").iterdir())
    (cells[1] / "round-2.result.json").unlink()
    shutil.rmtree(cells[0] / "round-1")
    found = pack(folder, archive, versions={}, environment={})
    line = "maelstrom-ens10 tfrecord: 1 of 3 rounds were not measured"
    assert line in found.notes
    verdict = verify(archive)
    assert verdict.wrong == ()
    assert line in verdict.notes
    assert any("figures of 1 of 5 runs are not proven" in note for note in verdict.notes)


def test_without_spans_no_figure_is_called_proven(suite: Path, tmp_path: Path) -> None:
    archive = tmp_path / "a.tar.gz"
    pack(suite, archive, versions={}, environment={}, spans=False)
    found = verify(archive)
    assert (found.wrong, found.n_figures) == ((), 0)
    assert any("figures of 6 of 6 runs are not proven" in note for note in found.notes)


def test_several_machines_and_versions_are_named(suite: Path, tmp_path: Path) -> None:
    folder, archive = tmp_path / "suite", tmp_path / "a.tar.gz"
    shutil.copytree(suite, folder)
    path = next(folder.rglob("round-0.result.json"))
    told = json.loads(path.read_text())
    path.write_text(json.dumps(told | {"versions": {"numpy": "2.5"}, "machine": {"cores": 9}}))
    pack(folder, archive, versions={}, environment={})
    found = verify(archive)
    assert found.wrong == ()
    assert "Several in it, numpy: 2.4, 2.5" in found.notes


def test_equal_samples_that_nobody_asked_for_are_not_claimed(suite: Path, tmp_path: Path) -> None:
    folder, archive = tmp_path / "suite", tmp_path / "a.tar.gz"
    shutil.copytree(suite, folder)
    whole = json.loads((folder / "recipe.json").read_text())
    del whole["fixed"]["digests"]
    recipe = SuiteRecipe.from_json(whole, where="here")
    (folder / "recipe.json").write_text(json.dumps(recipe.to_json()))
    for path in folder.rglob("*.result.json"):
        told = json.loads(path.read_text()) | {"recipe_digest": recipe.digest}
        del told["options"]["digests"]
        path.write_text(json.dumps(told))
    pack(folder, archive, versions={}, environment={})
    found = verify(archive)
    assert found.wrong == ()
    line = "Samples of 6 of 6 runs are not shown to be equal: no digests were asked for."
    assert found.notes == (line,)


FIRST = "cells/000-0"
RESULT = f"{FIRST}.result.json"


def another_figure(files: Files) -> None:
    changed_json(files, RESULT, lambda told: told["figures"].update(step_s=1e-9))


def no_figure(files: Files) -> None:
    changed_json(files, RESULT, lambda told: told["figures"].pop("wait_s"))


def another_digest(files: Files) -> None:
    changed_json(files, RESULT, lambda told: told.update(samples_digest="0" * 32))


def another_recipe(files: Files) -> None:
    changed_json(files, "recipe.json", lambda told: told["suite"].update(repeats=4))


def another_recipe_throughout(files: Files) -> None:
    another_recipe(files)
    digest = SuiteRecipe.from_json(json.loads(files["recipe.json"]), where="").digest
    changed_json(files, "MANIFEST.json", lambda told: told.update(recipe_digest=digest))


def another_cell(files: Files) -> None:
    changed_json(files, RESULT, lambda told: told["cell"].update(format="zarr"))


def swapped_cells(files: Files) -> None:
    """Let one format have the runs and figures of the other."""
    for number in range(REPEATS):
        one, two = (f"cells/00{cell}-{number}" for cell in (0, 1))
        names = {name.removeprefix(one) for name in files if name.startswith(f"{one}/")}
        names |= {name.removeprefix(two) for name in files if name.startswith(f"{two}/")}
        for name in names:
            both = files.pop(one + name, None), files.pop(two + name, None)
            files.update({two + name: both[0]} if both[0] is not None else {})
            files.update({one + name: both[1]} if both[1] is not None else {})
        told = [json.loads(files[f"{each}.result.json"]) for each in (one, two)]
        told[0]["figures"], told[1]["figures"] = told[1]["figures"], told[0]["figures"]
        for each, value in zip((one, two), told, strict=True):
            files[f"{each}.result.json"] = json.dumps(value).encode()


def the_best_run_twice(files: Files) -> None:
    of_run = {name: data for name, data in files.items() if name.startswith(f"{FIRST}/")}
    for name in [name for name in files if name.startswith("cells/000-1/")]:
        del files[name]
    files.update({name.replace("000-0", "000-1"): data for name, data in of_run.items()})
    files["cells/000-1.result.json"] = files[RESULT]
    changed_json(files, "cells/000-1.result.json", lambda told: told.update(round=1, run="000-1"))


def one_round_twice(files: Files) -> None:
    changed_json(files, RESULT, lambda told: told.update(round=1))


def another_option(files: Files) -> None:
    changed_json(files, RESULT, lambda told: told["options"].update({"batch-size": "64"}))


def no_digests(files: Files) -> None:
    changed_json(files, RESULT, lambda told: told["options"].pop("digests"))


def of_more_batches(files: Files) -> None:
    changed_json(files, f"{FIRST}/run.json", lambda told: told["asked"].update(batches=9))


def another_machine(files: Files) -> None:
    changed_json(files, RESULT, lambda told: told["machine"].update(cpu_model="Fastest 9000"))


def no_round(files: Files) -> None:
    for name in [name for name in files if name.startswith(FIRST)]:
        del files[name]


def one_more_file(files: Files) -> None:
    files["cells/000-0/spans/run.sh"] = b"#!/bin/sh\n"


def no_spans(files: Files) -> None:
    for name in [name for name in files if name.startswith(f"{FIRST}/spans/")]:
        files[name] = files[name][: len(files[name]) // 2]


def damaged_result(files: Files) -> None:
    files[RESULT] = b"{"


def failed_without_reason(files: Files) -> None:
    changed_json(files, RESULT, lambda told: told.update(status="failed", figures={}, reason=""))


def with_a_spool(files: Files) -> None:
    changed_json(files, f"{FIRST}/run.json", lambda told: told.update(spool="/somewhere/else"))


def no_run_facts(files: Files) -> None:
    files[f"{FIRST}/run.json"] = b"[]"


CHANGES = [
    (the_best_run_twice, "cells/000-0 and cells/000-1: are one run, its spans are the same"),
    (one_round_twice, "cells/000-1: is of the same cell and round as cells/000-0"),
    (another_option, "cells/000-0: has other options than its cell of the recipe"),
    (no_digests, "cells/000-0: has other options than its cell of the recipe"),
    (of_more_batches, "cells/000-0: is a cell of batches 4, and its run is of 9"),
    (another_machine, "cells/000-0: is of a machine with Fastest 9000, and its run of one with"),
    (with_a_spool, "cells/000-0: its run.json names a spool"),
    (no_run_facts, "cells/000-0: "),
    (another_figure, "cells/000-0: step_s is stated as 1e-09, and its run gives"),
    (no_figure, "cells/000-0: wait_s is stated as None, and its run gives"),
    (another_digest, "cells/000-0: samples_digest is stated as 0000"),
    (another_digest, "samples are not shown to be equal"),
    (another_recipe, "recipe.json: its digest is"),
    (another_recipe_throughout, "cells/000-0: is of recipe"),
    (another_cell, "cells/000-0: is of a cell that the recipe does not have"),
    (swapped_cells, "cells/000-0: is a cell of format numpy, and its run is of tfrecord"),
    (no_round, "numpy: 1 of 3 rounds were not measured, and its manifest does not say so"),
    (one_more_file, "cells/000-0/spans/run.sh: is no file of a suite"),
    (no_spans, "cells/000-0: "),
    (damaged_result, "cells/000-0.result.json: is damaged"),
    (failed_without_reason, "cells/000-0: is failed without a reason"),
]


@pytest.mark.quick_cases(5, thorough=0)
@pytest.mark.parametrize(("change", "why"), CHANGES)
def test_a_change_is_told_though_its_manifest_was_brought_up_to_date(
    archive: Path, tmp_path: Path, change: Callable[[Files], None], why: str
) -> None:
    files = read(archive)
    change(files)
    found = verify(written(tmp_path, files, told=True))
    assert [line for line in found.wrong if why in line], found.wrong
    assert all("\n" not in line and str(tmp_path) not in line for line in found.wrong)


@pytest.mark.quick_cases(7, thorough=0)
@pytest.mark.parametrize("change", [change for change, _ in CHANGES])
def test_a_change_is_told_by_its_digest(
    archive: Path, tmp_path: Path, change: Callable[[Files], None]
) -> None:
    files = read(archive)
    change(files)
    lines = verify(written(tmp_path, files, told=False)).wrong
    said = ("SHA-256 differs", "by its manifest", "not in its manifest", "is missing")
    assert any(each in line for line in lines for each in said), lines


def plain(name: str, data: bytes = b"", **more: Any) -> tuple[tarfile.TarInfo, bytes]:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    for key, value in more.items():
        setattr(member, key, value)
    return member, data


def tar_of(*members: tuple[tarfile.TarInfo, bytes], format_: int = tarfile.USTAR_FORMAT) -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=format_) as opened:
        for member, data in members:
            opened.addfile(member, io.BytesIO(data))
    return gzip.compress(raw.getvalue())


BEGIN = plain(f"{FOLDER}/MANIFEST.json", b'{"files": {}}')
OUTSIDE = "which is no file of iobench-suite/"


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (tar_of(BEGIN, plain(f"{FOLDER}/../../out", b"x")), OUTSIDE),
        (tar_of(BEGIN, plain("/tmp/out", b"x")), OUTSIDE),
        (tar_of(BEGIN, plain("other/out", b"x")), OUTSIDE),
        (tar_of(BEGIN, plain(f"{FOLDER}/a/.hidden", b"x")), OUTSIDE),
        (tar_of(BEGIN, plain(f"{FOLDER}/a\\..\\b", b"x")), OUTSIDE),
        (tar_of(BEGIN, plain(f"{FOLDER}/x", type=tarfile.SYMTYPE, linkname="/etc/hosts")), OUTSIDE),
        (tar_of(BEGIN, plain(f"{FOLDER}/x", type=tarfile.LNKTYPE, linkname="/etc/hosts")), OUTSIDE),
        (tar_of(BEGIN, plain(f"{FOLDER}/x", type=tarfile.DIRTYPE)), OUTSIDE),
        (tar_of(BEGIN, plain(f"{FOLDER}/x", type=tarfile.CHRTYPE)), OUTSIDE),
        (tar_of(BEGIN, plain(f"{FOLDER}/{'n' * 200}"), format_=tarfile.GNU_FORMAT), OUTSIDE[:13]),
        (tar_of(BEGIN, plain(f"{FOLDER}/a", b"x"), plain(f"{FOLDER}/a", b"x")), "holds a twice"),
        (tar_of(BEGIN, BEGIN), "holds MANIFEST.json twice"),
        (tar_of(plain(f"{FOLDER}/a", b"x"), BEGIN), "does not begin with MANIFEST.json"),
        (tar_of(plain(f"{FOLDER}/MANIFEST.json", b"[]")), "does not say what files there are"),
        (tar_of(plain(f"{FOLDER}/MANIFEST.json", b"[" * 200_000)), "lists in lists"),
        (
            tar_of(plain(f"{FOLDER}/MANIFEST.json", b'{"files": {"a": {"nbytes": Infinity}}}')),
            "does not say what files there are",
        ),
        (gzip.compress(gzip.decompress(tar_of(BEGIN)) + b"more"), "continues after its end"),
        (gzip.compress(gzip.decompress(tar_of(BEGIN)) + bytes(1 << 20)), "continues after its end"),
        (gzip.compress(b"no tar" * 1000), "expected an archive as"),
        (b"no gzip", "cannot be read"),
        (b"", "cut short"),
    ],
    ids=lambda each: "" if isinstance(each, bytes) else None,  # gzip's have the time in them
)  # fmt: skip
def test_what_no_suite_holds_is_refused_in_one_line(tmp_path: Path, data: bytes, why: str) -> None:
    archive = tmp_path / "a.tar.gz"
    archive.write_bytes(data)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ProfileError) as raised:
        verify(archive)
    assert why in str(raised.value)
    assert "\n" not in str(raised.value)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    header = tarfile.TarInfo(f"{FOLDER}/zeros")
    header.size = 1 << 40
    bomb = gzip.compress(
        gzip.decompress(tar_of(BEGIN))[: 2 * 512]
        + header.tobuf(tarfile.GNU_FORMAT)
        + bytes(1 << 20)
    )
    archive = tmp_path / "a.tar.gz"
    archive.write_bytes(bomb)
    with pytest.raises(ProfileError, match="far more than an archive of its size can"):
        verify(archive)


def test_a_manifest_without_end_is_refused(tmp_path: Path) -> None:
    header = tarfile.TarInfo(f"{FOLDER}/MANIFEST.json")
    header.size = 1 << 27
    archive = tmp_path / "a.tar.gz"
    archive.write_bytes(gzip.compress(header.tobuf() + bytes(1 << 20)))
    with pytest.raises(ProfileError, match="does not begin with"):
        verify(archive)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.999])
def test_a_truncated_archive_is_refused(archive: Path, tmp_path: Path, share: float) -> None:
    data = archive.read_bytes()
    short = tmp_path / "short.tar.gz"
    short.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(ProfileError, match=r"cut short or damaged|cannot be read"):
        verify(short)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"version": 2}, "is of version 2, expected 1; use a later iobench"),
        ({"kind": "iobench bundle"}, "is no archive of a suite"),
    ],
)
def test_another_version_or_kind_is_refused(
    archive: Path, tmp_path: Path, change: dict[str, Any], why: str
) -> None:
    files = read(archive)
    changed_json(files, "MANIFEST.json", lambda told: told.update(change))
    with pytest.raises(ProfileError, match=why):
        verify(written(tmp_path, files, told=True))


def test_a_folder_of_another_recipe_is_not_packed(suite: Path, tmp_path: Path) -> None:
    folder = tmp_path / "suite"
    shutil.copytree(suite, folder)
    path = next(folder.rglob("*.result.json"))
    path.write_text(json.dumps(json.loads(path.read_text()) | {"recipe_digest": "0" * 16}))
    with pytest.raises(ProfileError, match="is of another recipe"):
        pack(folder, tmp_path / "a.tar.gz", versions={}, environment={})
    assert not (tmp_path / "a.tar.gz").exists()


def test_the_commands_say_it_and_exit_with_it(
    suite: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("iobench.cli.installation.installed_versions", lambda: {"python": "3"})
    archive = tmp_path / "a.tar.gz"
    assert main(["suite", "pack", str(suite), str(tmp_path / "a.zip")]) == 1
    assert "expected a name that ends with .tar.gz" in capsys.readouterr().err
    assert main(["suite", "pack", str(suite), str(archive)]) == 0
    packed_digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    assert packed_digest in capsys.readouterr().out
    assert main(["suite", "verify", str(archive)]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "holds; small: 6 results" in told
    assert packed_digest in told
    files = read(archive)
    another_figure(files)
    changed = written(tmp_path, files, told=True)
    assert main(["suite", "verify", str(changed)]) == 3
    assert "does not hold" in " ".join(capsys.readouterr().out.split())
    assert main(["suite", "verify", str(changed), "--json"]) == 3
    said = json.loads(capsys.readouterr().out)
    assert said["holds"] is False
    assert any("step_s is stated as" in line for line in said["wrong"])
    bare = tmp_path / "bare.tar.gz"
    assert main(["suite", "pack", str(suite), str(bare), "--without-spans"]) == 0
    assert main(["suite", "verify", str(bare)]) == 4
    told = " ".join(capsys.readouterr().out.split())
    assert "cannot be checked; small: 6 results, 0 figures" in told
    assert main(["suite", "verify", str(bare), "--json"]) == 4
    assert json.loads(capsys.readouterr().out)["holds"] is None
    assert main(["suite", "verify", str(tmp_path / "none.tar.gz")]) == 1
    assert "cannot be read" in capsys.readouterr().err
