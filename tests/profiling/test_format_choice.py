from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iobench.cli.app import make_app
from iobench.command_options import convert_words, parse_format, split_formats
from iobench.errors import IobenchError
from iobench.profiling.config import FormatChoice

PIECES = st.sampled_from(
    [
        *("codec=blosc-lz4", "inner-chunk=y=256", "inner-chunk=y=8,x=8", "chunk-samples=8"),
        *("codec=zstd", "codec=bitround:keepbits=10,zstd", "codec=shuffle,blosc-lz4,lz4"),
        *("dtype=float16", "dtype=t=float16,u=int16", "range=u=-5:300"),
        "shard-size=64MiB",
    ]
)
ITEMS = st.one_of(
    st.sampled_from(["source", "zarr", "tfrecord", "numpy", "tfrecord:encoding=bytes"]),
    st.lists(PIECES, min_size=1, max_size=4).map(lambda pieces: f"zarr:{','.join(pieces)}"),
)


@given(st.lists(ITEMS, min_size=1, max_size=5))
def test_items_are_told_apart_however_they_are_given(items: list[str]) -> None:
    assert split_formats([",".join(items)]) == tuple(items)
    assert split_formats(items) == tuple(items)


@given(ITEMS)
def test_nothing_of_an_item_is_lost(item: str) -> None:
    name, options = parse_format(item)
    pieces = [f"{key}={value}" for key, value in options]
    again = f"{name}:{','.join(pieces)}" if pieces else name
    assert parse_format(again) == (name, options)
    words = convert_words(item)
    assert words[:2] == ["--to", name]
    expected = (
        ("--format-option", f"{key}={value}") if key in ("encoding", "inner-chunk")
        else (f"--{key}", value)
        for key, value in options
    )  # fmt: skip
    assert words[2:] == [word for each in expected for word in each]


def test_what_is_stored_otherwise() -> None:
    chosen = FormatChoice.parse(
        "zarr:inner-chunk=y=256,x=128,codec=blosc-lz4,dtype=t=float16,u=int16,range=u=0:1,"
        "shard-size=64MiB"
    )
    assert chosen.format_options == {"inner-chunk": "y=256,x=128", "codec": "blosc-lz4"}
    assert chosen.encoding is not None
    assert chosen.encoding.dtypes == {"t": "float16", "u": "int16"}
    assert chosen.encoding.ranges == {"u": (0.0, 1.0)}
    assert chosen.shard_nbytes == 64 << 20
    plain = FormatChoice.parse("zarr")
    assert (plain.format_options, plain.encoding, plain.shard_nbytes) == ({}, None, None)


@pytest.mark.parametrize(
    ("item", "said"),
    [
        ("zar", "did you mean zarr"),
        ("zarr:codecs=none", "'codecs' is no option; there are codec"),
        ("zarr:inner-chunk=y=256,codex=none", "'codex' is no option; there are codec"),
        ("zarr:range=t=0:1", "--range needs --dtype int16"),
        ("zarr:keep-bits=7", "zarr:keep-bits=7: format zarr: 'keep-bits' is no option"),
        ("zarr:codec=zstd:lvl=3", "numcodecs refuses it"),
        ("zarr:chunk-samples=no", "expected a number from 1"),
        ("numpy:codec=zstd", "format numpy has no options"),
        ("zarr:=1", "NAME=VALUE"),
        ("zarr:", "NAME=VALUE"),
    ],
)
def test_what_is_none_is_said(item: str, said: str) -> None:
    with pytest.raises(IobenchError, match=said):
        FormatChoice.parse(item)


def test_options_are_those_of_convert() -> None:
    has = {each for param in make_app().commands["convert"].params for each in param.opts}
    words = convert_words("zarr:codec=a,encoding=b,inner-chunk=y=1,dtype=d,"
                          "range=t=0:1,shard-size=1,other=2")  # fmt: skip
    assert {word for word in words if word.startswith("--")} <= has
    assert words[-2:] == ["--format-option", "other=2"]
