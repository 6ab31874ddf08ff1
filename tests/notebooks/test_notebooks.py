"""The notebooks: what is saved in them, and that they run from top to bottom."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from iobench.cli.app import make_app

ROOT = Path(__file__).parents[2]
NOTEBOOKS = ROOT / "notebooks"
SAVED_LIMIT = 300_000

NEEDED = {
    "01": ("eccodes", "netCDF4", "jinja2", "pyarrow", "pandas"),
    "03": ("eccodes", "netCDF4", "zarr", "xxhash"),
    "04": ("torch", "h5netcdf", "xarray", "xxhash", "pandas"),
    "05": ("tensorflow", "netCDF4", "xarray"),
    "06": ("eccodes", "netCDF4", "zarr"),
    "07": ("torch", "netCDF4"),
}
"""What each imports beside matplotlib, which all draw with."""


SPEC = importlib.util.spec_from_file_location("notebooks_execute", NOTEBOOKS / "execute.py")
tool = sys.modules[SPEC.name] = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(tool)
PATHS = tool.notebook_paths()
each_notebook = pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem[:2])


def _read(path):
    nbformat = pytest.importorskip("nbformat", reason="nbformat reads notebooks")
    return nbformat.read(path, as_version=4)


def _notebook(*outputs):
    v4 = pytest.importorskip("nbformat.v4", reason="nbformat makes notebooks")
    cell = v4.new_code_cell("1", outputs=[v4.new_output(**output) for output in outputs])
    return tool.tidied(v4.new_notebook(cells=[cell], metadata={"vscode": {"hash": "a"}}))


def _stream(text, name="stdout"):
    return {"output_type": "stream", "name": name, "text": text}


# --- what is saved ---


def test_there_are_the_seven_of_the_readme():
    told = (NOTEBOOKS / "README.md").read_text()
    assert [path.name[:2] for path in PATHS] == [*NEEDED]
    assert set(re.findall(r"\]\((\d\d_\w+\.ipynb)\)", told)) == {path.name for path in PATHS}


@each_notebook
def test_what_is_saved_ran_whole_is_small_and_has_nothing_of_the_machine_or_wrong(path):
    notebook = _read(path)
    assert tool.find_private(notebook) == []
    assert tool.find_complaints(notebook) == []
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert path.stat().st_size <= SAVED_LIMIT
    kinds = {kind for cell in cells for each in cell.outputs for kind in each.get("data", {})}
    assert "image/png" in kinds


@each_notebook
def test_it_ends_with_the_readers_own_data_and_its_links_and_options_are_there(path):
    cells = _read(path).cells
    told = [cell.source for cell in cells if cell.cell_type == "markdown"]
    headings = [line for text in told for line in text.splitlines() if line.startswith("## ")]
    assert headings[-1] == "## With your own data"
    links = [link for text in told for link in re.findall(r"\]\(([^)#]+)\)", text)]
    assert [link for link in links if "://" not in link and not (NOTEBOOKS / link).exists()] == []
    commands = make_app().commands
    source = "\n".join(cell.source for cell in cells).replace("\\\n", " ")
    lines = re.findall(r"(?:^!|^\s*\$ |`)iobench ([a-z]+)([^\n`|>]*)", source, re.MULTILINE)
    assert lines
    for name, rest in lines:
        there = {opt for param in commands[name].params for opt in param.opts}
        asked = re.findall(r"(?<=\s)--[a-z][a-z-]*", rest.partition(" -- ")[0])
        assert set(asked) <= there | {"--help", "--quiet"}, f"iobench {name}{rest}"


# --- that they run ---


@pytest.fixture
def temporary():
    """Not below pytest's own folder: the names of processes' sockets may have 107 characters."""
    with TemporaryDirectory(prefix="notebook-") as folder:
        yield Path(folder)


@pytest.mark.long  # twenty seconds and more: each command in them starts a process
@pytest.mark.timeout(400)
@each_notebook
def test_it_runs_from_top_to_bottom_and_leaves_nothing(path, tmp_path, temporary, monkeypatch):
    for name in ("nbclient", "ipykernel", "matplotlib", *NEEDED[path.name[:2]]):
        pytest.importorskip(name, reason=f"{path.name} needs {name}")
    here, home = (tmp_path / name for name in ("here", "home"))
    for folder in (here, home):
        folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "cache"))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")  # not where iobench is: as in a foreign Jupyter
    notebook = tool.run_notebook(path, here)
    assert tool.find_complaints(notebook) == []
    assert tool.find_private(notebook) == []
    assert list(here.iterdir()) == []
    assert [made.name for made in temporary.iterdir() if made.name.startswith("iobench")] == []
    ours = [made for made in home.rglob("*") if "iobench" in str(made.relative_to(home))]
    assert [made for made in ours if made.is_file()] == []


# --- the tool ---


@pytest.mark.parametrize(
    ("text", "n_private"),
    [
        ("kept in /tmp/iobench-x1/first", 1),
        ("\x1b[1m/home/ada/data/a.nc\x1b[0m", 1),
        ("at '/scratch/x/y'", 1),
        # Other slashes are no paths.
        *((text, 0) for text in ("2.1 GB/s hidden/exposed", "</div></td>", "https://a.org/b/c",
                                 "data/x/y", "../a/b/c")),
    ],
)  # fmt: skip
def test_absolute_paths_are_found(text, n_private):
    assert len(tool.find_private(_notebook(_stream(text)))) == n_private


def test_hosts_and_users_are_found_and_pictures_not_read_as_text(monkeypatch):
    monkeypatch.setattr(tool.socket, "gethostname", lambda: "juwels07")
    monkeypatch.setattr(tool.getpass, "getuser", lambda: "ada")
    html = {"output_type": "display_data", "data": {"text/html": "<td>juwels07</td>"}}
    found = tool.find_private(_notebook(html, _stream("made by ada")))
    assert found == ["cell 0: juwels07", "cell 0: ada"]
    picture = {"image/png": "aa/tmp/home/ada/bb", "text/plain": "<Figure>"}
    notebook = _notebook({"output_type": "display_data", "data": picture})
    assert tool.find_private(notebook) == []
    assert list(notebook.cells[0].outputs[0].data) == ["image/png"]


def test_complaints_are_found():
    said = "x.py:3: UserWarning: old\nTraceback (most recent call last)\nValueError: no"
    assert len(tool.find_complaints(_notebook(_stream(said, "stderr")))) == 3
    assert tool.find_complaints(_notebook(_stream("replay error 0.0 %: no Errors"))) == []


def test_a_notebook_is_saved_without_what_differs_and_not_where_it_must_not_be(
    tmp_path, monkeypatch, capsys
):
    notebook = _notebook(_stream("a\n"), _stream("b\n"), _stream("c\n", "stderr"))
    notebook.cells[0].metadata["execution"] = {"iopub.status.busy": "2026-01-01"}
    path = tmp_path / "01_a.ipynb"
    tool.save_notebook(tool.tidied(notebook), path)
    saved = json.loads(path.read_text())
    assert (saved["metadata"], saved["cells"][0]["metadata"]) == (tool.METADATA, {})
    texts = ["".join(output["text"]) for output in saved["cells"][0]["outputs"]]
    assert texts == ["a\nb\n", "c\n"]
    path.write_text("as it was")
    monkeypatch.setattr(tool, "HERE", tmp_path)
    monkeypatch.setattr(tool, "run_notebook", lambda *_: _notebook(_stream("in /home/ada/x")))
    assert tool.main(["01"]) == 1
    assert path.read_text() == "as it was"
    said = capsys.readouterr()
    assert (said.out, said.err) == ("01_a.ipynb: refused\n", "01_a.ipynb: cell 0: /home/ada\n")
    with pytest.raises(SystemExit):
        tool.main(["07"])
