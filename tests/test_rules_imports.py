"""Rules 1 and 2 of the design: imports go one way, and nothing heavy loads before it is used."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.source_files import FOLDERS, MODULES, nodes_of, project

# What each room of the core may import at run time, besides itself and ``errors``. Names of types
# that only annotations need (under ``if TYPE_CHECKING``) are free.
ROOMS = {
    "command_words": set(),
    "masking": set(),
    "extras": set(),
    "lazy_face": set(),
    "errors": set(),
    "command_options": set(),
    "cpus": set(),
    "json_files": set(),
    "files": {"cpus", "json_files", "recording"},
    "sizes": set(),
    "samples": set(),
    "coordinates": set(),
    "windows": {"samples"},
    "recording": {"command_words", "cpus", "json_files", "sizes"},
    "adapters": {"recording", "registry"},
    "registry": set(),
    "runs": {"json_files", "recording"},
    "analysis": {"runs", "recording", "storage"},
    "report": {"analysis", "files", "json_files", "runs", "recording", "registry", "storage"},
    "findings": {
        "analysis", "command_options", "files", "json_files", "runs", "recording", "report",
        "storage",
    },
    "storage": {"files", "json_files", "recording"},
    "stores": {
        "chunks", "coordinates", "files", "json_files", "recording", "registry", "samples",
    },
    "chunks": {"coordinates", "cpus", "files", "json_files", "samples", "sizes"},
    "datasets": {
        "chunks", "coordinates", "cpus", "files", "json_files", "recording", "samples", "sizes",
        "stores", "windows",
    },
    "loaders": {
        "chunks", "cpus", "datasets", "files", "recording", "samples", "storage", "stores",
    },
    "staging": {"cpus", "files", "json_files", "recording", "registry", "storage", "stores"},
    "torch": {"adapters", "loaders", "recording", "samples", "stores"},
    "tensorflow": {"adapters", "datasets", "loaders", "recording", "samples", "stores"},
    "dali": {"loaders", "recording", "samples", "stores"},
    "jax": {"adapters", "recording", "samples"},
    "compat": {"recording", "torch"},
    "launch": {"adapters", "command_words", "recording", "registry", "storage"},
    "testing": {
        "analysis", "datasets", "files", "findings", "recording", "registry", "report", "samples",
        "stores",
    },
    "sources": {"samples", "datasets", "files", "registry", "stores"},
    "profiling": {
        "analysis", "command_options", "cpus", "datasets", "files", "loaders", "runs", "recording",
        "registry", "samples", "sizes", "sources", "staging", "storage", "stores", "tensorflow",
        "torch", "dali",
    },
    "conversion": {
        "analysis", "chunks", "coordinates", "cpus", "datasets", "files", "loaders", "recording",
        "registry", "samples", "sizes", "sources", "stores",
    },
    "trials": {
        "analysis", "json_files", "launch", "runs", "profiling", "recording", "staging",
        "storage", "findings",
    },
    "suites": {
        "analysis", "command_options", "files", "json_files", "launch", "runs", "profiling",
        "recording", "registry", "report", "sizes", "storage", "findings", "trials",
    },
    "tracking": {"analysis", "files", "json_files", "runs", "recording", "report"},
    "cli": {
        "analysis", "chunks", "command_options", "conversion", "cpus", "datasets", "files",
        "launch", "runs", "profiling", "recording", "registry", "report", "sizes", "sources",
        "staging", "storage", "stores", "findings", "suites", "tracking", "trials",
    },
    "__main__": {"cli"},
}  # fmt: skip
AGAINST_THE_ARROW = {
    ("iobench.sources.opened_dataset", "OpenDataset.loader", "loaders"),
    ("iobench.stores.index_file", "read_index", "datasets"),
    ("iobench.loaders.ring.factory", "loader", "torch"),
    ("iobench.loaders.ring.factory", "loader", "tensorflow"),
}
"""One-line conveniences: (module, method, room that it imports from)."""
EVERYBODYS = {"errors", "extras", "lazy_face", "masking"}
LIGHT_ROOMS = {
    "recording", "runs", "analysis", "samples", "windows", "errors", "masking", "registry",
    "command_words", "coordinates", "cpus", "json_files",
}  # fmt: skip
MEASURING = {
    "adapters", "analysis", "launch", "runs", "recording", "report",
    "findings", "suites", "tracking", "trials",
}  # fmt: skip
PUBLIC_TO_PLUGINS = {
    "iobench", "iobench.coordinates", "iobench.datasets", "iobench.errors", "iobench.samples",
    "iobench.stores", "iobench.testing",
}  # fmt: skip
HEAVY = {
    "torch", "tensorflow", "xarray", "zarr", "dask", "pandas", "h5py", "netCDF4", "eccodes",
    "gribapi", "cfgrib", "h5netcdf", "isal", "deflate", "climetlab", "numcodecs", "darshan",
    "mlflow", "wandb", "pyarrow", "icechunk", "pynvml", "amdsmi", "jinja2", "IPython",
}  # fmt: skip
FRAMEWORK_ROOMS = {"tensorflow", "torch"}
"""Rooms loaded only when their framework is asked for, which may import it at the top."""


@dataclass(frozen=True, slots=True)
class Import:
    """One module that another one imports at run time."""

    module: str
    line: int
    name: str
    function: str

    @property
    def room(self) -> str:
        return _room(self.module)

    def __str__(self) -> str:
        return f"{self.module}:{self.line} imports {self.name}"


def _room(module: str) -> str:
    package, _, rest = module.partition(".")
    return package if package != "iobench" or not rest else rest.partition(".")[0]


def _is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)


def _imports_of(module: str, node: ast.AST, function: str = "") -> Iterator[Import]:
    """Yield the run-time imports below a statement, with the method they are in."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield Import(module, node.lineno, alias.name, function)
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, f"{module}:{node.lineno}: relative import"
        yield Import(module, node.lineno, node.module or "", function)
    elif not isinstance(node, ast.expr) and not _is_for_types(node):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            function = f"{function}.{node.name}".strip(".")
        for child in ast.iter_child_nodes(node):
            yield from _imports_of(module, child, function)


@functools.cache  # and not where this is imported: each worker of pytest does that
def imports() -> list[Import]:
    return [
        found
        for module, path in MODULES.items()
        for found in _imports_of(module, nodes_of(path)[0])
    ]


def among_us() -> list[Import]:
    return [found for found in imports() if found.name.split(".")[0] in FOLDERS]


def outside() -> list[Import]:
    known = {*FOLDERS, *sys.stdlib_module_names}
    return [found for found in imports() if found.name.split(".")[0] not in known]


def test_every_room_is_in_the_table() -> None:
    assert {_room(module) for module in MODULES} == {*ROOMS, *FOLDERS}


def test_the_table_has_no_circle() -> None:
    left = {room: set(arrows) for room, arrows in ROOMS.items()}
    while free := [room for room, arrows in left.items() if not arrows]:
        for room in free:
            del left[room]
        left = {room: arrows - set(free) for room, arrows in left.items()}
    assert not left


def test_imports_go_one_way() -> None:
    core = [each for each in among_us() if each.room in ROOMS and each.room != _room(each.name)]
    against = {
        (each.module, each.function, _room(each.name))
        for each in core
        if _room(each.name) not in {*ROOMS[each.room], *EVERYBODYS}
    }
    assert against == AGAINST_THE_ARROW


def test_the_measuring_side_has_no_large_circle() -> None:
    """Of all imports: lazy ones, and those that only annotations need, too."""
    modules = {module: path for module, path in MODULES.items() if _room(module) in MEASURING}
    found: dict[str, set[str]] = {module: set() for module in modules}
    for module, path in modules.items():
        for node in nodes_of(path):
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                inner = {f"{node.module}.{alias.name}" for alias in node.names} & {*modules}
                found[module] |= inner or {node.module} & {*modules}
    reached = {module: _reached(found, module) for module in modules}
    circles = {
        frozenset(other for other in reached[module] if module in reached[other])
        for module in modules
        if module in reached[module]
    }
    assert [sorted(circle) for circle in circles if len(circle) > 3] == []


def _reached(imports: dict[str, set[str]], module: str) -> set[str]:
    found: set[str] = set()
    left = [module]
    while left:
        new = imports[left.pop()] - found
        found |= new
        left += new
    return found


@pytest.mark.parametrize("hooked", ["iobench.torch.observing", "iobench.tensorflow.hooks"])
def test_recording_a_script_imports_no_dataset_and_no_store(hooked: str) -> None:
    at_the_top: dict[str, set[str]] = {module: set() for module in MODULES}
    for each in among_us():
        if not each.function:
            at_the_top[each.module].add(each.name)
    found = _reached(at_the_top, hooked) | _reached(at_the_top, "iobench.launch.hooks")
    assert "iobench.recording.session" in found
    not_needed = ("iobench.datasets", "iobench.stores", "iobench.loaders.ring", "iobench.files")
    assert sorted(name for name in found if name.startswith(not_needed)) == []
    assert len(found) < 60


def test_core_imports_no_plugin_and_no_converter() -> None:
    core = [found for found in among_us() if found.module.split(".")[0] == "iobench"]
    assert [str(found) for found in core if found.name.split(".")[0] != "iobench"] == []


@pytest.mark.parametrize(
    "package", ["iobench_maelstrom", "iobench_mlperf_hpc", "iobench_converters"]
)
def test_plugins_and_converters_import_public_names_only(package: str) -> None:
    theirs = [found for found in among_us() if found.module.split(".")[0] == package]
    assert theirs
    allowed = {found for found in theirs if found.name.split(".")[0] == package}
    assert [str(f) for f in theirs if f not in allowed and f.name not in PUBLIC_TO_PLUGINS] == []


def test_nothing_outside_its_folder_names_a_subject() -> None:
    points = project()["project"]["entry-points"]
    rooms = {
        value.partition(":")[0].rpartition(".")[0] for value in points["iobench.findings"].values()
    }
    assert rooms
    for room in rooms:
        within = [found for found in among_us() if f"{found.name}.".startswith(f"{room}.")]
        outside = [found for found in within if not found.module.startswith(f"{room}.")]
        # A finding may have a command of its own, and others may read its figures.
        others = [each for each in outside if each.room not in {"cli", "suites", "trials"}]
        assert {each.room for each in others} <= {"findings"}
        assert {found.name for found in others} <= {f"{room}.figures"}


def test_recording_and_analysis_need_numpy_and_msgspec_alone() -> None:
    """But for the meter and the list of mounts, which read machines by psutil."""
    inner = [found for found in outside() if found.room in LIGHT_ROOMS]
    inner = [each for each in inner if each.module not in OF_PSUTIL]
    light = ("msgspec", "numpy")
    assert [str(found) for found in inner if found.name.split(".")[0] not in light] == []


def test_heavy_libraries_are_imported_where_they_are_used() -> None:
    at_the_top = [found for found in outside() if not found.function]
    heavy = [found for found in at_the_top if found.name.split(".")[0] in HEAVY]
    assert [str(found) for found in heavy if found.room not in FRAMEWORK_ROOMS] == []


def test_every_library_is_a_dependency_or_in_an_extra() -> None:
    told = project()["project"]
    base = {_distribution(requirement) for requirement in told["dependencies"]}
    extras = {
        _distribution(requirement)
        for name, requirements in told["optional-dependencies"].items()
        for requirement in requirements
        if name not in {"test", "test-all"}
    }
    called = {
        "tensorflow": "tensorflow-cpu", "mlflow": "mlflow-skinny", "gribapi": "eccodes",
    }  # fmt: skip
    for found in outside():
        name = found.name.split(".")[0]
        known = base if found.room in {"cli", "profiling", "report"} else base | extras
        if found.room == "report":
            # A page, a table of spans: each is asked for, and says what it needs.
            known = known | {"jinja2", "pyarrow"}
        if found.room == "testing":
            known = known | {"pytest"}  # the shipped suites are run by it
        assert called.get(name, name).lower() in known, f"{found}: pyproject.toml does not list it"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sys.path.append(str(Path(__file__).parent / "support"))
    from page_runs import write_run

    return write_run(tmp_path_factory.mktemp("made") / "RUN")


OF_PSUTIL = {"iobench.recording.meter", "iobench.recording.mounts"}
NOT_OF_NUMPY = {"asyncio", "sqlite3", "unittest", "psutil"}
FOR_OTHERS = {
    "hashlib", "iobench.recording.meter", "iobench.analysis.placement",
    "iobench.report.timeline.page_payload",
}  # fmt: skip
"""What a report needs of runs that are traced or told at once, and of pages."""


@pytest.mark.parametrize(
    ("words", "more"),
    [
        ("", {"click", "rich", "numpy", "urllib"}),
        ("--help", {"rich", "numpy", "psutil", "asyncio"}),
        ("doctor", {"numpy", "psutil", "asyncio"}),
        ("list", NOT_OF_NUMPY),
        ("report RUN", NOT_OF_NUMPY | FOR_OTHERS),
    ],
)
def test_a_command_loads_nothing_heavy(words: str, more: set[str], run: Path) -> None:
    """Nor what it only looks for."""
    code = f"from iobench.cli import main; assert main({words.split()}) == 0"
    assert _loaded_by(code.replace("RUN", str(run))) & (HEAVY | more | {"jax", "grain"}) == set()


def test_importing_iobench_loads_nothing_heavy() -> None:
    assert _loaded_by("import iobench") & (HEAVY | {"rich", "click", "numpy"}) == set()


def test_every_public_name_resolves() -> None:
    import iobench

    assert iobench.__all__ == sorted(iobench.__all__)
    assert all(getattr(iobench, name) is not None for name in iobench.__all__)
    assert set(iobench.__all__) <= set(dir(iobench))
    with pytest.raises(AttributeError, match="no attribute 'exposures'"):
        _ = iobench.exposures


def _distribution(requirement: str) -> str:
    found = re.match(r"[\w.-]+", requirement)
    assert found is not None
    return found[0].lower()


def _loaded_by(code: str) -> set[str]:
    """Return the modules that a fresh interpreter holds after running ``code``."""
    report = "import sys; print('LOADED', *sys.modules)"
    answer = subprocess.run(
        [sys.executable, "-c", f"{code}\n{report}"], capture_output=True, text=True, check=True
    )
    return set(answer.stdout.rpartition("LOADED")[2].split())
