import errno
import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from godwit.extractor.errors import (
    ForeignStore,
    GodwitError,
    StoreFull,
    StoreUnreadable,
    StoreUnsure,
    UsageError,
)
from godwit.extractor.store import MARKER, Store, open_store, translated
from tests.extractor.samples import new_store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return new_store(tmp_path)


def only_file(folder: Path) -> Path:
    (found,) = [path for path in folder.rglob("*") if path.is_file()]
    return found


# Opening


@pytest.mark.parametrize(
    "spelling", ["{0}", "file://{0}", "file:{0}", "file://localhost{0}", "FILE://{0}", "{0}/"]
)
def test_a_folder_is_opened_however_it_is_spelt(tmp_path: Path, spelling: str) -> None:
    opened = open_store(spelling.format(tmp_path / "a b%20"), create=True)
    assert opened.uri == f"file://{tmp_path}/a b%20"
    assert json.loads((tmp_path / "a b%20" / MARKER).read_text()) == {"format": 1}


def test_a_relative_path_is_meant_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert open_store("state", create=True).uri == f"file://{tmp_path}/state"


@pytest.mark.parametrize(
    "uri", ["s3://bucket/x", "hdfs:///x", "gs://b", "file://other-host/x", "file:x", "file://"]
)
def test_an_address_that_is_not_supported_is_a_usage_error(uri: str) -> None:
    with pytest.raises(UsageError):
        open_store(uri, create=True)


def test_a_store_is_opened_again_and_again(tmp_path: Path) -> None:
    new_store(tmp_path).put("a", b"1")
    assert new_store(tmp_path).get("a") == b"1"
    assert open_store(str(tmp_path / "store"), create=False).get("a") == b"1"


def test_without_create_a_missing_or_an_empty_folder_is_no_store(tmp_path: Path) -> None:
    for folder in (tmp_path / "missing", tmp_path):
        with pytest.raises(StoreUnreadable, match="there is no store in"):
            open_store(str(folder), create=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("create", [True, False])
def test_a_folder_with_other_things_in_it_is_foreign_and_left_alone(tmp_path: Path, create: bool) -> None:
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(ForeignStore, match=r"thesis\.txt"):
        open_store(str(tmp_path), create=create)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_fresh_volume_is_as_good_as_an_empty_folder(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    assert open_store(str(tmp_path), create=True).list("jobs") == []


@pytest.mark.parametrize("marker", [b"", b"{", b"[]", b"{}", b'{"format": 2}', b'{"format": "1"}', b"\xff"])
def test_a_store_of_another_format_is_foreign(tmp_path: Path, marker: bytes) -> None:
    (tmp_path / MARKER).write_bytes(marker)
    with pytest.raises(ForeignStore):
        open_store(str(tmp_path), create=True)


def test_a_file_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in ("file", "file/below"):
        with pytest.raises(StoreUnreadable):
            open_store(str(tmp_path / path), create=True)


@contextmanager
def as_nobody() -> Iterator[None]:
    """Root may read everything: for a moment be somebody who may not."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_folder_that_may_not_be_read_is_an_unreadable_store(tmp_path: Path) -> None:
    opened = new_store(tmp_path)
    (tmp_path / "store").chmod(0)
    with as_nobody():
        with pytest.raises(StoreUnreadable, match="Permission denied") as caught:
            open_store(str(tmp_path / "store"), create=True)
        with pytest.raises(StoreUnreadable, match="Permission denied"):
            opened.get("a")
        with pytest.raises(StoreUnreadable, match="Permission denied"):
            opened.put("a", b"")
    (tmp_path / "store").chmod(0o700)
    assert isinstance(caught.value.__cause__, PermissionError)
    assert caught.value.exit_code == 67


# Values


def test_what_was_put_is_got_and_replaced(store: Store) -> None:
    assert store.get("jobs/a/x") is None
    assert not store.exists("jobs/a/x")
    store.put("jobs/a/x", b"one")
    store.put("jobs/a/x", b"two")
    assert store.get("jobs/a/x") == b"two"
    assert store.exists("jobs/a/x")


def test_only_the_first_creates_a_value(store: Store) -> None:
    assert store.create("a/x", b"first")
    assert not store.create("a/x", b"second")
    assert store.get("a/x") == b"first"


def test_a_private_value_is_for_its_owner_alone(store: Store, tmp_path: Path) -> None:
    store.put("a/public", b"")
    store.put("a/secret", b"", private=True)
    store.put("a/secret", b"again", private=True)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "store" / "a").iterdir()}
    assert modes["secret"] == 0o600
    assert modes["public"] & 0o444 == 0o444


def test_a_value_that_could_not_be_written_leaves_the_old_one_and_no_litter(
    store: Store, tmp_path: Path
) -> None:
    store.put("a/x", b"old")
    (tmp_path / "store" / "a" / "folder" / "below").mkdir(parents=True)
    with pytest.raises(StoreUnreadable):
        store.put("a/folder", b"a value cannot take the place of a folder")
    assert store.get("a/x") == b"old"
    assert [path.name for path in (tmp_path / "store" / "a").iterdir() if path.is_file()] == ["x"]


def test_listing_names_what_is_directly_below_and_nothing_half_written(store: Store, tmp_path: Path) -> None:
    for key in ("jobs/b/x", "jobs/a/x", "jobs/a/y/z"):
        store.put(key, b"")
    (tmp_path / "store" / "jobs" / ".godwit-0123").touch()
    assert store.list("jobs") == ["a", "b"]
    assert store.list("jobs/a") == ["x", "y"]
    assert store.list("nothing/here") == []


def test_deleting_takes_everything_below_and_the_folders_that_became_empty(
    store: Store, tmp_path: Path
) -> None:
    for key in ("jobs/a/x", "jobs/a/y/z", "jobs/ab"):
        store.put(key, b"")
    store.delete("jobs/a/x")
    store.delete("jobs/a/y")
    assert store.list("jobs") == ["ab"]
    store.delete("jobs")
    store.delete("never/was")
    assert only_file(tmp_path / "store").name == MARKER


@pytest.mark.parametrize("key", ["", "/etc/passwd", "../x", "a/../../x", "a//b", "a/", "."])
def test_a_key_never_leads_out_of_the_store(store: Store, key: str) -> None:
    for use in (store.get, store.delete, store.list, store.exists, store.bulk_uri, store.is_locked):
        with pytest.raises(ValueError, match="not a key"):
            use(key)


def test_a_bulk_address_is_as_hadoop_reads_it(tmp_path: Path) -> None:
    opened = open_store(f"{tmp_path}/with space", create=True)
    assert opened.bulk_uri("jobs/a/blocks") == f"file://{tmp_path}/with space/jobs/a/blocks"


def test_a_lock_is_held_until_it_is_released(store: Store) -> None:
    held = store.lock("jobs/a/lock")
    assert held is not None
    assert store.is_locked("jobs/a/lock")
    assert store.lock("jobs/a/lock") is None
    held.release()
    assert not store.is_locked("jobs/a/lock")


# When the store fails


def test_a_store_that_has_gone_is_not_taken_for_an_empty_one(store: Store, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "store")
    for use in (store.get, store.list, store.exists, store.delete, store.lock):
        with pytest.raises(StoreUnreadable, match="has gone"):
            use("jobs/a")
    with pytest.raises(StoreUnreadable, match="has gone"):
        store.put("jobs/a", b"")
    assert not (tmp_path / "store").exists()


FILL = """
import os, sys
from godwit.extractor.errors import StoreFull
from godwit.extractor.store import open_store
store = open_store(sys.argv[1], create=True)
store.put("a", b"old")
try:
    store.put("a", bytes(1_000_000))
except StoreFull as error:
    print(error.exit_code, store.get("a"), sorted(os.listdir(sys.argv[1])), type(error.__cause__).__name__)
"""


def test_a_full_store_says_so_and_keeps_what_it_had(tmp_path: Path) -> None:
    mount = 'mount -t tmpfs -o size=64k none "$1" || exit 77; exec "$2" -c "$3" "$1"'
    command = ["unshare", "-rm", "sh", "-c", mount, "sh", str(tmp_path), sys.executable, FILL]
    if shutil.which("unshare") is None:
        pytest.skip("no unshare here, so no small file system to fill")
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode in (1, 77):
        pytest.skip(f"may not mount a small file system to fill: {done.stderr}")
    assert done.stdout == "72 b'old' ['a', 'godwit-store'] OSError\n", done.stderr


@pytest.mark.parametrize("call", ["rename", "fsync of the folder"])
def test_a_write_that_fails_half_way_is_told_apart(
    store: Store, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def broken(*args: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(
        *((os, "rename") if call == "rename" else ("godwit.extractor.store._sync_folder",)), broken
    )
    with pytest.raises(StoreUnsure, match="Input/output error"):
        store.put("a", b"new")


def test_a_write_that_has_happened_is_one_although_something_stays_behind(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: object, **kwargs: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", broken)
        store.put("a", b"new")
    assert store.get("a") == b"new"


def test_a_write_that_the_system_refuses_has_not_happened(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "rename", full)
    with pytest.raises(StoreFull):
        store.put("a", b"new")


@pytest.mark.parametrize(
    ("number", "error"),
    [
        (errno.ENOSPC, StoreFull),
        (errno.EDQUOT, StoreFull),
        (errno.EIO, StoreUnreadable),
        (errno.ESTALE, StoreUnreadable),
        (errno.EROFS, StoreUnreadable),
        (errno.ENOENT, StoreUnreadable),
    ],
)
def test_the_systems_errors_become_ours(number: int, error: type[GodwitError]) -> None:
    assert type(translated(OSError(number, "text"), Path("/s"))) is error
