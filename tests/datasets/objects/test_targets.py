"""Names of objects: how they are spelled, found and called, and what goes wrong with them."""

import json

import numpy as np
import pytest

from iobench.datasets.python_objects import is_object_target, object_dataset, parse_value
from iobench.errors import IobenchError, OptionError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3), ("-3", -3), ("0", 0), ("007", "007"), ("20200101", 20200101),
        ("1.5", 1.5), ("1e3", 1000.0), (".5", 0.5), ("1_000", "1_000"), ("nan", "nan"),
        ("true", True), ("False", False), ("NONE", None), ("tier-1", "tier-1"),
        ("'3'", "3"), ('"true"', "true"), ("[1, b, 2.5]", [1, "b", 2.5]), ("[]", []),
        ("a,b", "a,b"), ("", ""), ("2020-03-01", "2020-03-01"), ("'", "'"), (4, 4),
    ],
)  # fmt: skip
def test_values_of_options(text, value):
    parsed = parse_value(text)
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize("text", ["a:b", "a.b.c:D.e", "climetlab:maelstrom-yr", "_x:y1"])
def test_targets_are_known(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert is_object_target(text)
    (tmp_path / text).write_text("a file of that name comes first")
    assert not is_object_target(text)


@pytest.mark.parametrize("text", ["a", "a/b:c", "a.nc", "a:b:c", "1a:b", "a:", ":b", "C:\\x.nc"])
def test_what_is_no_target(text):
    assert not is_object_target(text)


@pytest.mark.parametrize(
    ("target", "options", "expected"),
    [
        ("nowhere.at.all:x", {}, "no module 'nowhere', seen from "),
        ("mydata:Square", {}, "mydata has no 'Square'; it has .*Squares"),
        ("mydata:Squares.nope", {}, "has no 'nope'"),
        ("mydata:nothing", {}, "returned None; let it return a dataset"),
        ("mydata:broken", {}, "called and raised RuntimeError: no such disk; mend it"),
        ("mydata:number", {}, "is of type int; expected a dataset with __len__"),
        ("mydata:MODULE_TEXT", {}, "has no 'MODULE_TEXT'"),
        ("mydata:__name__", {}, "is of type str"),
        ("mydata:Squares", {"m": "3"}, r"unexpected keyword argument 'm'; .* --option NAME=VALUE"),
        ("mydata:text_and_number", {}, "missing a required argument: 'day'"),
        ("mydata:ready", {"n": "3"}, "not callable, so it takes no --option"),
        ("mydata:empty", {}, "its length is 0"),
        ("mydata:empty_stream", {}, "is empty; give something that has samples"),
        ("badly:x", {}, "importing badly raised SyntaxError"),
        ("needy:x", {}, "importing needy raised ModuleNotFoundError: .*absent_library"),
        ("mydata", {}, "expected package.module:callable"),
    ],
)
def test_errors_are_one_line_and_say_what_to_do(own_module, opened, target, options, expected):
    (own_module / "badly.py").write_text("def x(:\n")
    (own_module / "needy.py").write_text("import absent_library\n")
    with pytest.raises(IobenchError, match=expected) as caught:
        opened(target, options=options)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith((target, f"{target!r}"))


def test_options_are_arguments_and_text_where_the_callable_says_so(own_module, opened):
    dataset, index = opened("mydata:text_and_number", options={"day": "20240101", "count": "3"})
    assert len(index) == 3
    assert dataset.read(0)["0"].tolist() == [8]
    assert index.provenance["options"] == {"day": "20240101", "count": "3"}


def test_an_object_that_is_made_takes_no_options():
    with pytest.raises(OptionError, match="options n: the list is made already"):
        object_dataset([1], options={"n": 1})


def test_options_of_any_kind_can_be_kept(own_module, opened):
    _, index = opened("mydata:Squares", options={"n": 3, "scale": np.float32(2)})
    options = index.provenance["options"]
    assert json.loads(json.dumps(options)) == options
    assert options["n"] == 3
    assert "2.0" in options["scale"]
