"""Runs told to Weights & Biases offline, and read back from what it wrote."""

from __future__ import annotations

import pytest

wandb = pytest.importorskip("wandb", reason="needs wandb")

from offline_runs import offline_runs  # noqa: E402
from tracked_runs import make_run  # noqa: E402

from iobench.cli import main  # noqa: E402

SECRET = "QQ" * 20


@pytest.fixture(autouse=True)
def no_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page that takes no time."""
    renderer = "iobench.tracking.run_logging.HtmlRenderer.render"
    monkeypatch.setattr(renderer, lambda *_: "<p>")
    monkeypatch.setenv("WANDB_API_KEY", SECRET)


def test_a_run_is_read_back(tmp_path, capfd):
    run = make_run(tmp_path / "run")
    assert main(["report", str(run), "--json", "--wandb", "me/radiation"]) == 0
    printed = capfd.readouterr()
    assert "wandb sync" in printed.err
    assert printed.out.startswith("{")
    (found,) = offline_runs(tmp_path)
    assert (found.run.entity, found.run.project) == ("me", "radiation")
    assert found.run.display_name == "run"
    assert found.config["iobench/dataset"] == "maelstrom-yr"
    rows = [row for row in found.history if "iobench/epoch/wall_s" in row]
    assert [row["iobench/epoch"] for row in rows] == [0, 1]
    for name, values in {
        "iobench/read/exposed_s/mean": [0.02, 0.05],
        "iobench/read/exposed_s/stdev": [0.01, 0.01],
        "iobench/batch_s/max": [0.05, 0.08],
    }.items():
        assert [row[name] for row in rows] == pytest.approx(values, abs=1e-9)
    assert found.summary["iobench/run/exposed_fraction"] == pytest.approx(242 / 332)
    assert "I/O-bound" in found.summary["iobench.verdict"]
    (page,) = [row for row in found.history if "iobench/page._type" in row]
    assert page["iobench/page._type"] == "html-file"
    for file in tmp_path.rglob("*"):
        assert not file.is_file() or SECRET.encode() not in file.read_bytes(), file
    assert SECRET not in printed.err


def test_again_it_is_the_same_run_with_the_same_steps(tmp_path):
    run = make_run(tmp_path / "run")
    for _ in range(2):
        assert main(["report", str(run), "--wandb", "radiation"]) == 0
    first, second = offline_runs(tmp_path)
    assert first.run.run_id == second.run.run_id
    steps = [[row["_step"] for row in each.history] for each in (first, second)]
    assert steps[0] == steps[1] == sorted(set(steps[0]))


def test_several_profiles_are_a_group(tmp_path):
    run = make_run(tmp_path / "job", ranks=2)
    assert main(["report", str(run), "--wandb", "radiation"]) == 0
    found = offline_runs(tmp_path)
    assert {each.run.run_group for each in found} == {"job"}
    assert {each.run.display_name for each in found} == {"job rank-0", "job rank-1"}
    assert sum("iobench/page._type" in row for each in found for row in each.history) == 1


def test_a_server_that_refuses_leaves_the_run_and_says_how_to_go_on(tmp_path, monkeypatch, capsys):
    def refuse(**_: object) -> None:
        raise wandb.errors.CommError(f"cannot reach https://me:{SECRET}@api\nfor long")

    monkeypatch.setattr(wandb, "init", refuse)
    run = make_run(tmp_path / "run")
    assert main(["report", str(run), "--wandb", "radiation"]) == 75
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert f"iobench report {run} --wandb radiation" in line
    assert SECRET not in line
