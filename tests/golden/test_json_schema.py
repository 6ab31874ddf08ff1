"""``iobench report --json-schema`` is what ``--json`` of recorded runs is, with few keys."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from iobench.cli import main
from tests.golden.outputs import HERE, unpack

jsonschema = pytest.importorskip("jsonschema", reason="checks documents by their schema")
MOST_KEYS = 150
Place = tuple[str, ...]


def places(schema: Any, definitions: Any, at: Place = ()) -> set[Place]:
    """Return the places of values in a document; ``*`` is any name of a mapping, or any row."""
    if "$ref" in schema:
        schema = definitions[schema["$ref"].rpartition("/")[2]]
    if "anyOf" in schema:
        of = (each for each in schema["anyOf"] if each.get("type") != "null")
        return set().union(*(places(each, definitions, at) for each in of))
    inner = schema.get("items") or schema.get("additionalProperties")
    if isinstance(inner, dict):
        return places(inner, definitions, (*at, "*")) or {at}
    if "properties" in schema:
        of_keys = schema["properties"].items()
        return set().union(*(places(each, definitions, (*at, key)) for key, each in of_keys))
    return {at}


def known_places(value: Any, of: set[Place], at: Place = ()) -> set[Place]:
    """Return the places of these at which a document has something."""
    if value is None or at in of:
        return set() if value is None else {at}
    if isinstance(value, list):
        return set().union(*(known_places(each, of, (*at, "*")) for each in value))
    named = {place[: len(at) + 1] for place in of}
    result: set[Place] = set()
    for key, each in value.items() if isinstance(value, dict) else ():
        result |= known_places(each, of, (*at, key if (*at, key) in named else "*"))
    return result


def printed(capsys: pytest.CaptureFixture[str], *words: str | Path) -> Any:
    assert main(["report", *map(str, words)]) == 0
    return json.loads(capsys.readouterr().out)


def test_recorded_runs_are_of_the_schema_and_have_few_keys(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    schema = printed(capsys, "--json-schema")
    validator = jsonschema.Draft202012Validator(schema)
    of = places(schema, schema["$defs"])
    names = {place[2] for place in of if place[0] == "runs"}
    for name in unpack(HERE / "runs", tmp_path):
        for run in (tmp_path / name).glob("run*/"):
            document = printed(capsys, run, "--json")
            if "job" not in document:
                continue  # a folder of runs, which is a list
            validator.validate(document)
            for each in document["runs"]:
                assert each.keys() == names
                assert len(known_places({"runs": [each]}, of)) <= MOST_KEYS


@pytest.mark.parametrize(("key", "wrong"), [("wait_ns", 1.5), ("stages", {}), ("batches", None)])
def test_the_schema_refuses_a_figure_of_another_type(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], key: str, wrong: Any
) -> None:
    unpack(HERE / "runs", tmp_path)
    document = printed(capsys, tmp_path / "power-serial" / "run", "--json")
    document["runs"][0][key] = wrong
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, printed(capsys, "--json-schema"))
