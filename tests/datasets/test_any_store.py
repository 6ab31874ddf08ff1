"""Sources that libraries of their own write: read bit for bit, loaded shuffled, converted."""

import base64
import json
import sys
import warnings

import h5py
import numpy as np
import pytest

import iobench
from iobench.cli import main
from iobench.errors import IobenchError, MissingExtraError

pa = pytest.importorskip("pyarrow", reason="writes tables")
zarr = pytest.importorskip("zarr", minversion="3", reason="writes the stores")

N = 7
RNG = np.random.default_rng(4)
FIELDS = {
    "t": RNG.normal(280, 5, (N, 4, 6)).astype("f4"),
    "n": RNG.integers(1, 9, (N, 3)).astype("i2"),
    "flag": RNG.random(N) < 0.5,
}
DIMS = {"t": ("time", "y", "x"), "n": ("time", "z"), "flag": ("time",)}


def netcdf(path):
    """Chunks of two samples, deflated; a coordinate; numbers in one piece."""
    with h5py.File(path, "w") as file:
        for name, length in {"time": N, "y": 4, "x": 6, "z": 3}.items():
            file[name] = np.arange(length, dtype="f8")
            file[name].make_scale(name)
        file["time"].attrs["units"] = np.bytes_("hours since 2020-01-01")
        for name in ("t", "n"):
            more = {"chunks": (2, 2, 6), "compression": "gzip", "shuffle": True}
            data = file.create_dataset(name, data=FIELDS[name], **(more if name == "t" else {}))
            for axis, dim in enumerate(DIMS[name]):
                data.dims[axis].attach_scale(file[dim])
    return path


def zarr_group(store, **codecs):
    group = zarr.open_group(store, mode="w", zarr_format=3)
    for name, values in FIELDS.items():
        more = codecs if name == "t" else {}
        chunks = (2, *values.shape[1:])
        array = group.create_array(
            name, shape=values.shape, dtype=values.dtype, chunks=more.pop("chunks", chunks),
            dimension_names=DIMS[name], **more,
        )  # fmt: skip
        array[...] = values
    return group


def shards_in_shards(folder):
    inner = zarr.codecs.ShardingCodec(chunk_shape=(1, 4, 6), codecs=[zarr.codecs.BytesCodec()])
    shards = zarr.codecs.ShardingCodec(chunk_shape=(2, 4, 6), codecs=[inner])
    zarr_group(folder / "s.zarr", chunks=(4, 4, 6), serializer=shards, compressors=None)
    return folder / "s.zarr"


def icechunk(folder):
    icechunk = pytest.importorskip("icechunk", reason="writes repositories")
    storage = icechunk.local_filesystem_storage(str(folder / "repository"))
    repository = icechunk.Repository.create(storage)
    session = repository.writable_session("main")
    zarr_group(session.store)
    session.commit("all")
    return folder / "repository"


def by_hand(folder):
    """Chunks in a file of raw numbers, inline, absent, and in a file of their own."""
    raw = folder / "raw.bin"
    raw.write_bytes(b"x" * 5 + FIELDS["t"].astype(">f4").tobytes())
    (folder / "flags").write_bytes(FIELDS["flag"].tobytes())
    nbytes = FIELDS["t"][0].nbytes
    refs = {".zgroup": '{"zarr_format": 2}', "flag/0": [str(folder / "flags")]}
    chunks = {"t": [1, 4, 6], "n": [4, 3], "flag": [N]}
    for name, values in FIELDS.items():
        refs[f"{name}/.zarray"] = json.dumps({
            "zarr_format": 2, "shape": values.shape, "chunks": chunks[name], "order": "C",
            "dtype": ">f4" if name == "t" else values.dtype.str, "fill_value": None,
            "compressor": None, "filters": None,
        })  # fmt: skip
        refs[f"{name}/.zattrs"] = json.dumps({"_ARRAY_DIMENSIONS": DIMS[name]})
    refs |= {f"t/{i}.0.0": ["{{here}}/raw.bin", 5 + i * nbytes, nbytes] for i in range(N)}
    padded = np.zeros((8, 3), "i2")
    padded[:N] = FIELDS["n"]
    for i in range(2):
        content = padded[4 * i : 4 * i + 4].tobytes()
        refs[f"n/{i}.0"] = "base64:" + base64.b64encode(content).decode()
    whole = {"version": 1, "templates": {"here": folder.as_uri()}, "refs": refs}
    (folder / "refs.json").write_text(json.dumps(whole))
    return folder / "refs.json"


def kerchunk(folder, parquet=False):
    hdf = pytest.importorskip("kerchunk.hdf", reason="writes references")
    refs = hdf.SingleHdf5ToZarr(str(netcdf(folder / "a.nc")), inline_threshold=80).translate()
    if parquet:
        from kerchunk.df import refs_to_dataframe

        refs_to_dataframe(refs, str(folder / "refs.parq"), record_size=3)
        return folder / "refs.parq"
    (folder / "refs.json").write_text(json.dumps(refs))
    return folder / "refs.json"


def virtualizarr(folder, to="json"):
    vz = pytest.importorskip("virtualizarr", reason="writes references")
    from obspec_utils.registry import ObjectStoreRegistry
    from obstore.store import LocalStore

    url = netcdf(folder / "a.nc").as_uri()
    registry = ObjectStoreRegistry({"file://": LocalStore()})
    virtual = vz.open_virtual_dataset(url, registry=registry, parser=vz.parsers.HDFParser())
    target = folder / f"refs.{to}"
    virtual.virtualize.to_kerchunk(str(target), format=to)
    return target


def one_sample_files(folder, suffix):
    (folder / "samples").mkdir()
    for i in range(N):
        path = folder / "samples" / f"{i}{suffix}"
        own = {name: values[i] for name, values in FIELDS.items()}
        if suffix == ".npz":
            (np.savez_compressed if i % 2 else np.savez)(path, **own)
            continue
        with h5py.File(path, "w") as file:
            file.update(own)
    return folder / "samples"


def table(kind=None):
    t = FIELDS["t"]
    tensors = pa.FixedShapeTensorArray.from_numpy_ndarray(t)
    lists = pa.FixedSizeListArray.from_arrays(pa.array(t.reshape(-1)), 24)
    return pa.table({
        "t": tensors if kind == "tensors" else lists,
        "n": pa.FixedSizeListArray.from_arrays(pa.array(FIELDS["n"].reshape(-1)), 3),
        "flag": pa.array(FIELDS["flag"]),
        "name": pa.array([f"s{i}" for i in range(N)]),
    })  # fmt: skip


def parquet(folder):
    from pyarrow import parquet

    parquet.write_table(table(), folder / "t.parquet", row_group_size=3)
    return folder / "t.parquet"


def arrow(folder, stream=False, **more):
    new = pa.ipc.new_stream if stream else pa.ipc.new_file
    made = table("tensors")
    with new(folder / "t.arrow", made.schema, options=pa.ipc.IpcWriteOptions(**more)) as file:
        file.write_table(made, max_chunksize=2)
    return folder / "t.arrow"


SOURCES = {
    "references": by_hand,
    "npz": lambda folder: one_sample_files(folder, ".npz"),
    "parquet": parquet,
    "shards in shards": shards_in_shards,
    "icechunk": icechunk,
    "kerchunk": kerchunk,
    "kerchunk parquet": lambda folder: kerchunk(folder, parquet=True),
    "virtualizarr": virtualizarr,
    "virtualizarr parquet": lambda folder: virtualizarr(folder, "parquet"),
    "h5": lambda folder: one_sample_files(folder, ".h5"),
    "arrow": lambda folder: arrow(folder, compression="lz4"),
    "arrow stream": lambda folder: arrow(folder, stream=True),
}


def expected(name, i, sample):
    values = FIELDS[name][i]
    return values.reshape(-1) if name == "t" and sample.ndim == 1 else values


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("kind", SOURCES)
def test_what_others_write_is_read_loaded_and_converted(kind, tmp_path, capsys):
    (tmp_path / "in").mkdir()
    with warnings.catch_warnings(action="ignore"):  # of what is not Zarr's own, and of pandas
        target = SOURCES[kind](tmp_path / "in")
    samples = iobench.open_dataset(target, store_dir=tmp_path)
    assert len(samples) == N
    is_referred = kind.startswith(("kerchunk", "virtualizarr"))
    assert set(samples[0]) == ({"t", "n"} if is_referred else set(FIELDS))
    for i in range(N):
        for name, values in samples[i].items():
            right = expected(name, i, values)
            # HDF5's fill value of 0 is missing, as xarray has it of what kerchunk writes.
            right = right.astype("f4") if name == "n" and is_referred else right
            np.testing.assert_array_equal(values, right, strict=True)
    loader = iobench.loader(samples, 2, shuffle=True, seed=3, threads=2, processes=True)
    loaded = np.concatenate([np.array(batch["n"]) for batch in loader])
    loader.close()
    assert sorted(map(tuple, loaded)) == sorted(map(tuple, FIELDS["n"]))
    out = str(tmp_path / "out.zarr")
    assert main(["convert", str(target), out, "--to", "zarr", "--quiet"]) == 0, capsys.readouterr()
    stored = zarr.open_group(out, mode="r")["t"][...]
    np.testing.assert_array_equal(stored.reshape(N, -1), FIELDS["t"].reshape(N, -1))
    if kind == "references":  # of which the files they name are a part
        (tmp_path / "in/raw.bin").write_bytes(bytes(6 + FIELDS["t"].nbytes))
        assert main(["convert", str(target), out, "--to", "zarr", "--quiet"]) == 1
        target.write_text(target.read_text() + "\n")  # made anew, of the other file
        assert not iobench.open_dataset(target, store_dir=tmp_path)[0]["t"].any()


@pytest.mark.long
@pytest.mark.parametrize("kind", ["references", "npz", "parquet", "shards in shards", "icechunk"])
def test_they_are_read_behind_a_url(kind, tmp_path, put_files):
    (tmp_path / "in").mkdir()
    target = SOURCES[kind](tmp_path / "in")
    if kind == "references":
        text = target.read_text().replace((tmp_path / "in").as_uri(), put_files(tmp_path / "in"))
        target.write_text(text.replace(str(tmp_path / "in/flags"), "flags"))
    url = put_files(tmp_path / "in" if kind == "references" else target)
    url += {"npz": "/*.npz", "references": "/refs.json"}.get(kind, "")
    here, there = (iobench.open_dataset(each, store_dir=tmp_path) for each in (target, url))
    assert len(there) == N
    for i in range(N):
        for name, values in here[i].items():
            np.testing.assert_array_equal(there[i][name], values, strict=True)


def rewritten(path, **changes):
    held = json.loads(path.read_text())
    whole = {key: changes.pop(key) for key in ("gen", "refs") if key in changes}
    held["refs"] |= changes
    path.write_text(json.dumps(held | whole))
    return path


def archive(folder, **arrays):
    np.savez(folder / "a.npz", **arrays)
    return folder / "a.npz"


def written_table(folder, **columns):
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pa.table(columns), folder / "t.parquet")
    return folder / "t.parquet"


def differing(folder, **second):
    for number, arrays in enumerate(({"x": np.zeros(3)}, second)):
        np.savez(folder / f"{number}.npz", **arrays)
    return folder


def shorter(path):
    path.write_bytes(path.read_bytes()[:-30])
    return path


def zarr_array(folder, **changes):
    document = json.loads((shards_in_shards(folder) / "t/zarr.json").read_text())
    (folder / "s.zarr/t/zarr.json").write_text(json.dumps(document | changes))
    return folder / "s.zarr"


GRIB = [{"id": "grib", "var": "t"}]
PICKLE = [{"name": "bytes"}, {"name": "numcodecs.pickle"}]
OF_GRIB = {
    "zarr_format": 2, "shape": [N, 4, 6], "chunks": [1, 4, 6], "dtype": "<f8", "order": "C",
    "compressor": None, "fill_value": None, "filters": GRIB,
}  # fmt: skip
REFUSED = {
    "references: made by a program": (
        lambda folder: rewritten(by_hand(folder), gen=[{}]), "they generate keys"),
    "references: computed names": (
        lambda folder: rewritten(by_hand(folder), **{"t/0.0.0": ["{{here + 1}}", 0, 96]}),
        "is computed"),
    "references: gone": (
        lambda folder: rewritten(by_hand(folder), **{"flag/0": ["gone.bin"]}), "not there"),
    "references: a list": (
        lambda folder: rewritten(by_hand(folder), refs=[]), "read as references"),
    "references: before the file": (
        lambda folder: rewritten(by_hand(folder), **{"t/0.0.0": ["raw.bin", -4, 96]}),
        "raw.bin', -4, 96"),
    "references: no bytes": (
        lambda folder: rewritten(by_hand(folder), **{"n/0.0": "base64:", "n/1.0": "base64:"}),
        "'n' has no bytes"),
    "references: other JSON": (
        lambda folder: shorter(by_hand(folder)).with_name("refs.json"), "is no JSON"),
    "references: GRIB": (
        lambda folder: rewritten(
            by_hand(folder), **{"t/.zarray": json.dumps(OF_GRIB)}),
        "codec grib"),
    "zarr: pickles": (lambda folder: zarr_array(folder, codecs=PICKLE), "numcodecs.pickle"),
    "npz: objects": (lambda folder: archive(folder, x=np.array([{}])), "only pickle reads"),
    "npz: cut short": (lambda folder: shorter(archive(folder, x=np.ones(3))), "read as npz"),
    "npz: other shapes": (lambda folder: differing(folder, x=np.zeros(4)), r"1\.npz: .*'x'"),
    "npz: other names": (lambda folder: differing(folder, y=np.zeros(3)), r"\.npz: .*'[xy]'"),
    "npz: other dtypes": (lambda folder: differing(folder, x=np.zeros(3, "f4")), r"1\.npz: .*'x'"),
    "table: lists of any length": (
        lambda folder: written_table(folder, x=[[1.0], [1.0, 2.0]]), "fixed_size_list"),
    "table: no value": (lambda folder: written_table(folder, x=[1.0, None]), "have no value"),
    "table: cut short": (lambda folder: shorter(parquet(folder)), "read as a table"),
    "icechunk: no branch": (lambda folder: f"{icechunk(folder)}#@other", "icechunk cannot read"),
    "icechunk: no group": (lambda folder: f"{icechunk(folder)}#deep", "has no group 'deep'"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_read_is_said_in_one_line(case, tmp_path):
    (tmp_path / "in").mkdir()
    make, message = REFUSED[case]
    with pytest.raises(IobenchError, match=message) as raised:  # noqa: PT012 - some at the first
        samples = iobench.open_dataset(
            make(tmp_path / "in"),
            sample_dim="file" if "npz" in case else "row" if "table" in case else "time",
            store_dir=tmp_path,
        )
        samples[0]
    assert "\n" not in str(raised.value)


def test_each_snapshot_of_a_repository_is_named(tmp_path):
    lib = pytest.importorskip("icechunk", reason="writes repositories")
    path = icechunk(tmp_path)
    repository = lib.Repository.open(lib.local_filesystem_storage(str(path)))
    first = repository.lookup_branch("main")
    repository.create_tag("v1", first)
    session = repository.writable_session("main")
    zarr.open_group(session.store, mode="r+")["n"][0] = 99
    session.commit("changed")
    found = [
        iobench.open_dataset(f"{path}{name}", sample_dim="time", store_dir=tmp_path)[0]["n"][0]
        for name in ("", "#@main", "#@v1", f"#@{first}")
    ]
    assert found == [99, 99, FIELDS["n"][0, 0], FIELDS["n"][0, 0]]


@pytest.mark.long
def test_a_repository_behind_a_url_reads_no_file_of_this_machine(tmp_path, put_files):
    lib = pytest.importorskip("icechunk", reason="writes repositories")
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key").write_bytes(bytes(8))
    place = f"{(tmp_path / 'secret').as_uri()}/"
    config = lib.RepositoryConfig.default()
    local = lib.local_filesystem_store(str(tmp_path / "secret"))
    config.set_virtual_chunk_container(lib.VirtualChunkContainer(place, local))
    repository = lib.Repository.create(
        lib.local_filesystem_storage(str(tmp_path / "repository")), config
    )
    repository.save_config()
    session = repository.writable_session("main")
    group = zarr.create_group(session.store)
    group.create_array(
        "x", shape=(1,), chunks=(1,), dtype="f8", dimension_names=["time"], compressors=None
    )
    session.store.set_virtual_ref("x/c/0", f"{place}key", offset=0, length=8)
    session.commit("names a file")
    here = iobench.open_dataset(tmp_path / "repository", sample_dim="time", store_dir=tmp_path)
    assert here[0]["x"] == 0
    url = put_files(tmp_path / "repository")
    with pytest.raises(IobenchError, match="icechunk cannot read"):
        iobench.open_dataset(url, sample_dim="time", store_dir=tmp_path)[0]


@pytest.mark.parametrize(
    ("kind", "module"),
    [("parquet", "pyarrow"), ("icechunk", "icechunk"), ("shards in shards", "zarr")],
)
def test_what_is_not_installed_is_named(kind, module, tmp_path, monkeypatch):
    target = SOURCES[kind](tmp_path)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match="pip install"):
        iobench.open_dataset(target, store_dir=tmp_path)[0]
