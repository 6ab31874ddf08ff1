from __future__ import annotations

import os

import pytest

from iobench.errors import StorageError, StoreClaimedError
from iobench.files.locks import locked
from iobench.stores.places import choose_place, list_items, make_item, remove_item


@pytest.fixture(autouse=True)
def environ(tmp_path, monkeypatch):
    """An environment with nothing but a home directory that names a place."""
    for name in ("IOBENCH_STORE_DIR", "SCRATCH", "TMPDIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return monkeypatch


@pytest.fixture
def data(tmp_path):
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def close(folder):
    """Take from everybody the permission to write there."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o555)


def test_order_of_places(tmp_path, data, environ):
    environ.setenv("IOBENCH_STORE_DIR", str(tmp_path / "named"))
    environ.setenv("SCRATCH", str(tmp_path / "scratch"))
    environ.setenv("TMPDIR", str(tmp_path / "tmp"))
    found = [choose_place(store_dir=tmp_path / "asked").path]
    found.append(choose_place().path)
    environ.delenv("IOBENCH_STORE_DIR")
    for _ in range(3):
        found.append(choose_place().path)
        close(found[-1])
    assert [str(path.relative_to(tmp_path)) for path in found] == [
        "asked",
        "named",
        "scratch/iobench",
        "tmp/iobench",
        "home/.cache/iobench",
    ]


def test_home_is_never_filled_silently(data, environ):
    assert "home directory" in choose_place().notice
    asked = choose_place(store_dir=data / "stores")
    assert not asked.notice


def test_place_asked_for_is_used_or_refused(tmp_path, data, environ):
    close(tmp_path / "asked")
    with pytest.raises(StorageError, match=r"asked \(--store-dir\): not writable"):
        choose_place(store_dir=tmp_path / "asked")


def test_a_folder_closed_to_all_is_left_alone_by_root_too(data, environ):
    close(data)
    assert choose_place().path == data.parent / "home/.cache/iobench"
    with pytest.raises(StorageError, match="not writable"):
        choose_place(store_dir=data)
    with pytest.raises(StorageError, match="not writable; make it writable"):
        make_item(data / ".iobench/indexes", kind="index", title="a")
    assert list(data.iterdir()) == []


def test_items_are_listed_with_their_size(tmp_path):
    for kind, name in (("stand-in", "b"), ("probe", "a")):
        item = make_item(tmp_path / "deep" / name, kind=kind, title=f"my {kind}")
        (item / "content").write_bytes(b"12345")
    (tmp_path / "mine").mkdir()
    items = list_items([tmp_path, tmp_path / "deep"])
    assert [(item.path.name, item.kind, item.title) for item in items] == [
        ("a", "probe", "my probe"),
        ("b", "stand-in", "my stand-in"),
    ]
    assert all(item.nbytes > 5 for item in items)


def test_removed_item_is_gone_and_nothing_else(tmp_path):
    item = make_item(tmp_path / "a", kind="store", title="a")
    (item / "folder").mkdir()
    (item / "folder" / "file").touch()
    (tmp_path / "mine").touch()
    (item / "link").symlink_to(tmp_path / "mine")
    for found in list_items([tmp_path]):
        remove_item(found.path)
    assert [file.name for file in tmp_path.iterdir()] == ["mine"]


def test_folder_with_other_content_is_never_marked(tmp_path):
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(StorageError, match=r"thesis\.tex, which iobench did not make"):
        make_item(tmp_path, kind="store", title="a")
    assert list_items([tmp_path]) == []


def test_folder_without_a_mark_is_never_removed(tmp_path):
    make_item(tmp_path / "a", kind="store", title="a")
    (tmp_path / "a" / ".iobench-item.json").unlink()
    with pytest.raises(StorageError, match="not made by iobench"):
        remove_item(tmp_path / "a")


def test_link_to_an_item_is_neither_listed_nor_removed(tmp_path):
    make_item(tmp_path / "elsewhere" / "a", kind="store", title="a")
    (tmp_path / "place").mkdir()
    (tmp_path / "place" / "a").symlink_to(tmp_path / "elsewhere" / "a")
    assert list_items([tmp_path / "place"]) == []


def test_item_being_written_is_not_removed(tmp_path):
    make_item(tmp_path / "a", kind="store", title="a")
    with locked(tmp_path / "a"), pytest.raises(StoreClaimedError, match=str(os.getpid())):
        remove_item(tmp_path / "a")


@pytest.mark.parametrize("name", ["stores", "stand-ins/maelstrom-yr-v1", "indexes"])
def test_links_of_other_users_are_not_followed_by_root_either(data, environ, monkeypatch, name):
    elsewhere = data / "elsewhere"
    elsewhere.mkdir()
    link = data / "shared" / name
    link.parent.mkdir(parents=True)
    link.symlink_to(elsewhere)
    assert choose_place(store_dir=data / "shared").path == data / "shared"
    if os.geteuid():
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
    else:
        os.lchown(link, 12345, 12345)
    with pytest.raises(StorageError, match=r"is a symbolic link of user .*; remove it, or choose"):
        choose_place(store_dir=data / "shared")
