"""The suites for authors hold ours, and refuse what does not keep a contract."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest

import iobench.testing
from iobench.datasets import SampleIndex
from iobench.datasets.locate import FileLocator
from iobench.errors import SampleError
from iobench.recording.kinds import Kind
from iobench.recording.span_file import Flag
from iobench.registry import installed_findings
from iobench.report.document import Section, sentences
from iobench.samples import SampleSpec, Variable
from iobench.testing import DatasetTests, FindingTests
from iobench.testing.datasets import check_positions
from iobench.testing.findings import READ_NS, STEP_NS
from tests.support.sketched_runs import CONSUMER, SketchedRun

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iobench.analysis.run import Run
    from iobench.datasets import Arrays, Locator, Raw
    from iobench.findings.contract import Finding
    from iobench.samples import Sample


def test_every_public_name_is_there_and_the_clock_needs_no_pytest() -> None:
    assert [name for name in dir(iobench.testing) if getattr(iobench.testing, name) is None] == []
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        iobench.testing.Nonsense  # noqa: B018
    code = "import sys; sys.modules['pytest'] = None; from iobench.testing import FakeClock"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize(
    ("positions", "rows", "is_right"),
    [
        ((), (), True),
        ([0, 1, 2.5, 9], (), True),
        ([4, 3, 2, 1], (), True),
        ([0, 1, 0, 1], [0, 0, 1, 1], True),
        ([0, 0, 1, 1], [7, 3, 7, 3], True),
        ([0, 1, 2], (), False),
        ([0, 1, 1, 2], (), False),
        ([0, 1, 3, 2], (), False),
        ([0, 1, 0, 1], (), False),
        ([0, 1, 1, 0], [0, 0, 1, 1], False),
        ([0, 1, float("nan"), 3], (), False),
        ([0, 1, 2, 3], [0, 0], False),
        ((), [0, 0, 1, 1], False),
    ],
)
def test_positions_are_in_order_within_each_row(positions: Any, rows: Any, is_right: bool) -> None:
    spec = SampleSpec((Variable("v", (), "<f4", ()),))
    index = SampleIndex(spec, range(4), positions=positions, rows=rows)
    if is_right:
        check_positions(index)
        return
    with pytest.raises(AssertionError):
        check_positions(index)


# ---- datasets

SPEC = SampleSpec((Variable("x", (2, 3), "<f4", ("y", "x")),))
BUFFER = np.zeros((2, 3), "<f4")


class Days:
    """A file a day; the mistake is one that authors make."""

    fused = ()

    def __init__(self, mistake: str) -> None:
        self.mistake = mistake
        self.helper: Any = (lambda: None) if mistake == "lambda" else None

    def samples(self, files: Sequence[Path], locator: Locator) -> SampleIndex:
        splits = {"train": [0, 9]} if self.mistake == "split" else {}
        names = ["one"] if self.mistake == "names" else ()
        return SampleIndex(SPEC, list(map(str, files)), splits, names)

    def read(self, where: str) -> Raw:
        return [] if self.mistake == "fused" else [Path(where).read_bytes()]

    def decode(self, raw: Raw, where: str) -> Arrays:
        content = b"".join(raw).ljust(24, b"0")  # a damaged file goes unnoticed
        return {"x": np.frombuffer(content, "<f4").reshape(2, 3)}

    def preprocess(self, arrays: Arrays, where: str) -> Sample:
        values = {
            "dtype": lambda x: x.astype("f8"),
            "shape": lambda x: x[: 2 - where.endswith("1.f4")],
            "random": lambda x: x + np.random.default_rng().random(dtype="f4"),
            "buffer": lambda x: np.multiply(x, 2, out=BUFFER),
        }.get(self.mistake, lambda x: x)(arrays["x"])
        return {"y" if self.mistake == "key" else "x": values}


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        ("dtype", "<f8"),
        ("shape", r"<f4 \(1, 3\)"),
        ("key", "got .'y'."),
        ("random", "copy differs"),
        ("buffer", "written over"),
        ("fused", "'fused'"),
        ("split", "split train"),
        ("names", "a name"),
        ("lambda", "pickle"),
        ("damage", "no error"),
    ],
)
def test_mistakes_in_a_dataset_are_found(
    mistake: str, message: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    files = [tmp_path / f"{day}.f4" for day in range(3)]
    for day, file in enumerate(files):
        np.full((2, 3), day + 1, "<f4").tofile(file)
    dataset, locator = Days(mistake), FileLocator(cache_dir=tmp_path)
    index = dataset.samples(files, locator)
    suite: Any = DatasetTests()
    check = partial(suite.test_it_keeps_the_contract, dataset, files, locator, index)
    if mistake == "damage":
        damage = suite.test_damage_is_named_and_nothing_else_is_read
        check = partial(damage, dataset, files, locator, tmp_path_factory, 0.5)
    with pytest.raises((AssertionError, SampleError, AttributeError), match=message):
        check()


# ---- findings

OURS = {each.name: each for each in installed_findings()}
MORE: dict[str, dict[str, Any]] = {
    "storage": {},
    "mlperf_utilisation": {},
    "replay": {},
    "next_steps": {},
    "staging": {"kind": Kind.STAGE_IN},
    "device": {"kind": Kind.FORWARD, "batch": 0, "flags": Flag.DEVICE | Flag.DETAIL, "thread": 1},
}
"""What a run needs beside four batches for a finding to have something to say of it."""


@pytest.mark.parametrize("name", MORE)
class TestSpeaking(FindingTests):
    @pytest.fixture
    def finding(self, name: str) -> Finding[Any]:
        return OURS[name]

    @pytest.fixture
    def run(self, name: str, tmp_path: Path) -> Run:
        sketch = SketchedRun(dataset="sketched", format="source")
        for batch in range(4):
            start_ns, of = batch * STEP_NS, {"batch": batch, "epoch": 0, "nbytes": 10**6}
            ready_ns = start_ns + READ_NS
            sketch.add(CONSUMER, Kind.READ, start_ns, ready_ns, **of)
            sketch.wait(batch, start_ns, ready_ns, "consumer", epoch=0, nbytes=10**6)
            sketch.add(CONSUMER, Kind.FORWARD, ready_ns, start_ns + STEP_NS, batch=batch, epoch=0)
        if MORE[name]:
            sketch.add(CONSUMER, start_ns=5, end_ns=9, nbytes=8, **MORE[name])
        return sketch.write(tmp_path / "run")


@pytest.mark.parametrize("finding", OURS.values(), ids=OURS)
class TestAll:
    test_installed = FindingTests.test_it_is_installed_under_its_name
    test_without_a_batch = FindingTests.test_of_a_run_without_a_batch_nothing_or_something_is_said

    def test_of_other_findings_it_uses_structs_alone(self, finding: Finding[Any]) -> None:
        modules = {each.figures.__module__ for each in OURS.values()}
        own = {finding.figures.__module__, finding.section.__module__}
        for name in own:
            for statement in ast.walk(ast.parse(inspect.getsource(sys.modules[name]))):
                if isinstance(statement, ast.ImportFrom) and statement.module in modules - own:
                    other = importlib.import_module(statement.module or "")
                    for each in statement.names:
                        value = getattr(other, each.name)
                        assert isinstance(value, type)
                        assert issubclass(value, msgspec.Struct) or dataclasses.is_dataclass(value)


class Wrong(msgspec.Struct):
    value: Any
    hidden: Any = msgspec.field(default=None, name="value2")


@pytest.mark.parametrize(
    ("struct", "figures"),
    [
        (int, 3),
        (dict, {"a": 1}),
        (Wrong, Wrong(float("nan"))),
        (Wrong, Wrong(np.arange(3))),
        (Wrong, None),
        (Section, Wrong(1)),
    ],
)
def test_other_figures_are_refused(struct: Any, figures: Any) -> None:
    finding: Any = SimpleNamespace(struct=struct)
    with pytest.raises((AssertionError, ValueError, TypeError)):
        FindingTests().test_figures_are_a_struct_of_strict_json(finding, figures)


@pytest.mark.parametrize(
    "section",
    [
        lambda figures: Section("x", "X", ()),
        lambda figures: Section("x", "X", sentences([str(id(figures))])),
    ],
)
def test_sections_of_nothing_or_of_something_else_are_refused(section: Any) -> None:
    finding: Any = SimpleNamespace(section=section, struct=Wrong)
    with pytest.raises(AssertionError):
        FindingTests().test_the_section_is_of_the_figures_alone(finding, Wrong(1))
