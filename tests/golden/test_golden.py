"""Recorded runs, conversions, loaders and launches give what is stored of them: README.md."""

from __future__ import annotations

import copy
import json
from collections import Counter
from typing import Any

import pytest

from iobench.analysis.run import open_runs
from iobench.cli import main
from iobench.registry import find_renderer
from iobench.report.document import Command, KeyFigures, Quantity, Sentence, Table
from iobench.report.one_screen import one_screen
from iobench.report.renderers.quantities import said, spelled
from iobench.report.renderers.terminal import TerminalRenderer
from iobench.report.report_document import report_document
from tests.golden import batches, stores
from tests.golden.bounded import PLACE, lanes_of, true_sums, unpacked
from tests.golden.launches import COUNTS, FORMS, NEEDS, recorded, start, wrong_counts
from tests.golden.outputs import GONE, HERE, changed, differences, outputs_of, unpack
from tests.support.page_runs import PageParts

STORED, MOST_KEYS, MOST_LINES, MOST_BRIEF_KEYS = HERE / "outputs", 150, 150, 60
CASES = sorted(file.name.removesuffix(".tar.xz") for file in (HERE / "runs").iterdir())
QUICK = ("power-serial", "script-keras", "suite-formats")


def of_cases(*quick, of=CASES):
    long = pytest.mark.long
    return [pytest.param(each, marks=() if each in quick else long) for each in of]


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    place = tmp_path_factory.mktemp("recorded")
    assert unpack(HERE / "runs", place) == CASES
    return place


def printed(capsys, *words):
    assert main(["report", *map(str, words)]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("name", of_cases("power-serial"))
def test_commands_say_of_recorded_runs_what_is_stored(name, cases):
    assert [*(STORED / name).glob("*.json")]
    assert changed(STORED / name, outputs_of(cases / name)) == []


# -- renderers ----------------------------------------------------------------------------


def terminal(document):
    text = TerminalRenderer().render(document)
    assert len(text.splitlines()) <= MOST_LINES or document.parts
    lines = (line for line in text.splitlines() if not line.startswith("    iobench "))
    assert max(map(len, lines)) <= 80
    return text


def markdown(document):
    parser = pytest.importorskip("markdown_it", reason="a parser of CommonMark reads the pages")
    text = find_renderer("markdown").render(document)
    return PageParts(parser.MarkdownIt("gfm-like", {"linkify": False}).render(text)).words


def page(document):
    return PageParts(find_renderer("html").render(document)).words


@pytest.mark.parametrize("render", [terminal, markdown, page])
@pytest.mark.parametrize("name", of_cases(*QUICK))
def test_every_renderer_says_all_of_a_document(name, render, cases, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    run = cases / name / "run"
    run = run if run.exists() else next((cases / name).rglob("run.json")).parent
    document = report_document(open_runs(run))
    text = " ".join(render(document).split())
    sections = [
        section
        for part in (document, *document.parts)
        for section in part.sections
        if not (part.is_spare or section.is_only_drawn)
    ]
    shown = [section.title for section in sections]
    for block in (block for section in sections for block in section.blocks):
        match block:
            case Sentence():
                shown.append(block.text)
            case Command():
                shown += [block.sentence, block.command]
            case KeyFigures():
                shown += [part for k in block.figures for part in (k.name, said(k.figure), k.rest)]
            case Table():
                rows = (*block.rows, *([block.total] if block.total else []))
                texts = spelled(block)
                of_rows = (*texts.rows, *([texts.total] if texts.total else []))
                shown.append(block.note)
                shown += [
                    cell_text
                    for row, row_texts in zip(rows, of_rows, strict=True)
                    for cell, cell_text in zip(row, row_texts, strict=True)
                    if isinstance(cell, Quantity)
                ]
    assert [each for each in shown if " ".join(each.split()) not in text] == []
    if render is terminal:
        screen = one_screen(document, "iobench report RUN --full").splitlines()
        assert sum(max(1, -(-len(line) // 80)) for line in screen) <= 40
        assert screen[-1] == "    iobench report RUN --full"


# -- the schema of JSON -------------------------------------------------------------------


def places(schema, definitions, at=()):
    """Return the places of values in a document; ``*`` is any name of a mapping, or any row."""
    if "$ref" in schema:
        schema = definitions[schema["$ref"].rpartition("/")[2]]
    if "anyOf" in schema:
        of = (each for each in schema["anyOf"] if each.get("type") != "null")
        return set().union(*(places(each, definitions, at) for each in of))
    inner = schema.get("items") or schema.get("additionalProperties")
    if isinstance(inner, dict):
        return places(inner, definitions, (*at, "*")) or {at}
    of_keys = schema.get("properties", {}).items()
    return set().union(*(places(each, definitions, (*at, key)) for key, each in of_keys)) or {at}


def known_places(value, of, at=()):
    """Return the places of these at which a document has something."""
    if value is None or at in of:
        return set() if value is None else {at}
    if isinstance(value, list):
        return set().union(*(known_places(each, of, (*at, "*")) for each in value))
    named = {place[: len(at) + 1] for place in of}
    keys = {key: key if (*at, key) in named else "*" for key in value}
    return set().union(*(known_places(value[k], of, (*at, name)) for k, name in keys.items()))


def keys_of(value):
    """Return all names of keys in a document."""
    if isinstance(value, list):
        return set().union(*map(keys_of, value))
    return set(value).union(*map(keys_of, value.values())) if isinstance(value, dict) else set()


OF_RUNS = [each for each in CASES if not each.startswith("suite-")]
SCHEMATIC = ("power-serial", "script-keras", "script-two-ranks")


@pytest.mark.parametrize("name", of_cases(*SCHEMATIC, of=OF_RUNS))
def test_recorded_runs_are_of_the_schema_and_have_few_keys(name, cases, capsys):
    jsonschema = pytest.importorskip("jsonschema", reason="checks documents by their schema")
    schema = printed(capsys, "--json-schema")
    validator = jsonschema.Draft202012Validator(schema)
    of = places(schema, schema["$defs"])
    names = {place[2] for place in of if place[0] == "runs"}
    for run in (cases / name).glob("run*/"):
        document = printed(capsys, run, "--json")
        if "job" not in document:
            return  # a folder of runs, which is a list
        validator.validate(document)
        for each in document["runs"]:
            assert each.keys() == names
            assert len(known_places({"runs": [each]}, of)) <= MOST_KEYS
        brief = printed(capsys, run, "--json", "--brief")
        assert len(keys_of(brief)) <= MOST_BRIEF_KEYS
        assert len({(each["name"], each["rank"]) for each in brief["runs"]}) == len(brief["runs"])
        assert any(word in brief["sentence"] for word in (" waits ", "No verdict", "Loads "))
        known = {each["rank"]: each["diagnosis"] for each in document["runs"]}
        for each in brief["runs"] if len(known) == len(document["runs"]) else ():
            for key in ("verdict", "wait_fraction", "window", "hidden_fraction"):
                assert each[key] == known[each["rank"]][key]
    for key, wrong in (("wait_ns", 1.5), ("stages", {}), ("batches", None)):
        broken = copy.deepcopy(document)
        broken["runs"][0][key] = wrong
        assert not validator.is_valid(broken)


# -- runs that are not kept whole ---------------------------------------------------------

WORK = ("read", "collate", "fused", "serialise", "unpickle", "sampler")


@pytest.mark.parametrize("kept", ["whole", "bounded"])
@pytest.mark.parametrize("name", sorted(path.stem for path in PLACE.glob("*.json")))
def test_waits_and_busy_time_by_stage_are_exact(name, kept, tmp_path, capsys):
    """Kept whole, or but for the first and the latest batches as sums."""
    sums = json.loads((PLACE / f"{name}.json").read_text())
    path = unpacked(f"{name}-{kept}", tmp_path)
    assert kept == "bounded" or true_sums(lanes_of(path)) == sums
    (run,) = printed(capsys, path, "--json")["runs"]
    summed = run["summed"] or {"batches": 0, "wait_ns": 0, "busy_ns": {}}
    assert (summed["batches"] > 300) == (kept == "bounded")
    assert run["batches"] + summed["batches"] == sums["loop"]["batches"] > 1000
    assert run["wait_ns"] + summed["wait_ns"] == sums["loop"]["wait_ns"]
    expected: Counter[str] = Counter()
    for stage, each in sums["stages"].items():
        expected[stage.partition(": ")[2]] += each["own_ns"]
    busy_ns = Counter(summed["busy_ns"])
    busy_ns.update({row["stage"]: row["busy_ns"] for row in run["stages"]})
    assert {stage: busy_ns[stage] for stage in WORK} == {stage: expected[stage] for stage in WORK}
    assert all(expected[stage] > 0 for stage in WORK)


# -- stores, batches, launches ------------------------------------------------------------


@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", ["packed", pytest.param("", marks=pytest.mark.long)])
def test_conversions_write_what_is_stored(part, tmp_path, monkeypatch):
    monkeypatch.setenv("IOBENCH_STORE_DIR", str(tmp_path))
    result = stores.compare([part] * bool(part), tmp_path)
    assert len(result) == sum(part in name for name, _ in stores.cases())
    assert {name: lines for name, lines in result.items() if lines} == {}


@pytest.mark.timeout(120)
def test_batches_are_those_that_are_stored(tmp_path, monkeypatch):
    monkeypatch.setenv("IOBENCH_STORE_DIR", str(tmp_path))
    assert batches.compare(tmp_path, []) == []


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", FORMS)
def test_a_training_is_the_same_and_recorded_as_it_was(name, tmp_path):
    pytest.importorskip("torch", reason="the scripts load by torch's DataLoader")
    pytest.importorskip("pyarrow", reason="spans are counted in the table of them")
    if name in NEEDS:
        pytest.importorskip(NEEDS[name], reason="the script is one of this framework")
    plain = start(FORMS[name], tmp_path / "plain")
    found, counts = recorded(FORMS[name], tmp_path)
    assert found == plain
    assert wrong_counts(json.loads(COUNTS.read_text())[name], counts) == []


# -- what compares ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "place"),
    [
        (lambda run: run.update(wait_ns=run["wait_ns"] + 1), ".wait_ns"),
        (lambda run: run["stages"].pop(), ".stages"),
        (lambda run: run.pop("epochs"), ".epochs"),
    ],
)
def test_a_figure_that_changes_or_is_gone_is_a_difference(change, place):
    before: Any = json.loads((STORED / "power-serial" / "report.json").read_text())
    after = copy.deepcopy(before)
    after["runs"][0]["stages"].reverse()
    after["runs"][0]["in_no_earlier_version"] = 1
    assert list(differences(before, after, "report")) == []
    change(after["runs"][0])
    ((at, _, new),) = differences(before, after, "report")
    assert (at, new == GONE) == (f"report.runs[0]{place}", place == ".epochs")
