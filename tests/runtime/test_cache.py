"""The file cache: addresses, damage, permissions, processes at once."""

import os
import stat
import subprocess
import sys
import time

import pytest
from dynfix.runtime.cache import disk_cache
from dynfix.runtime.diagnostics import DynfixWarning


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("DYNFIX_CACHE_DIR", str(tmp_path / "kernels"))
    return tmp_path / "kernels"


def test_put_and_get(folder):
    key = disk_cache.key("source", b"flags")
    assert disk_cache.get(key, ".so") is None
    path = disk_cache.put(key, ".so", b"content")
    assert path == disk_cache.get(key, ".so") == disk_cache.path_for(key, ".so")
    assert path.read_bytes() == disk_cache.read(key, ".so") == b"content"
    assert disk_cache.get(key, ".cpp") is None and disk_cache.read(key, ".cpp") is None
    assert path.is_relative_to(folder)


def test_keys_tell_parts_apart():
    keys = [
        disk_cache.key(*p)
        for p in (("ab", "c"), ("a", "bc"), ("abc",), ("abc", ""), (b"abc",), ("c", "ab"), ())
    ]
    assert len(set(keys)) == len(keys)
    assert disk_cache.key("ab", "c") == keys[0]


def test_only_the_owner_may_read(folder):
    path = disk_cache.put(disk_cache.key("x"), ".so", b"x")
    for place, mode in ((folder, 0o700), (path.parent, 0o700), (path, 0o600)):
        assert stat.S_IMODE(place.stat().st_mode) == mode


@pytest.mark.parametrize("damage", [b"", b"conten", b"Content", b"content and more"])
def test_a_damaged_file_is_removed_and_can_be_put_again(folder, damage):
    key = disk_cache.key("x")
    path = disk_cache.put(key, ".so", b"content")
    path.write_bytes(damage)
    assert disk_cache.get(key, ".so") is None
    assert not path.exists()
    assert disk_cache.put(key, ".so", b"content").read_bytes() == b"content"


def test_a_file_without_its_hash_is_not_believed(folder):
    key = disk_cache.key("x")
    path = disk_cache.put(key, ".so", b"content")
    path.with_name(path.name + ".sha256").unlink()
    assert disk_cache.get(key, ".so") is None
    disk_cache.put(key, ".so", b"content")
    path.with_name(path.name + ".sha256").write_text("0" * 64)
    assert disk_cache.get(key, ".so") is None


def test_an_undamaged_file_stays(folder):
    key = disk_cache.key("x")
    path = disk_cache.put(key, ".so", b"first")
    before = path.stat().st_ino
    assert disk_cache.put(key, ".so", b"second").read_bytes() == b"first"
    assert path.stat().st_ino == before


def test_a_failed_write_leaves_nothing(folder, monkeypatch):
    key = disk_cache.key("x")
    disk_cache.root()

    def fail(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="No space"):
        disk_cache.put(key, ".so", b"content")
    monkeypatch.undo()
    monkeypatch.setenv("DYNFIX_CACHE_DIR", str(folder))
    assert {p.name for p in folder.rglob("*") if p.is_file()} == {".dynfix-cache"}


def test_a_folder_that_others_can_write_is_not_used(folder):
    folder.mkdir(mode=0o700)
    folder.chmod(0o777)
    with pytest.warns(DynfixWarning, match="can be written by others"):
        root = disk_cache.root()
    assert root != folder and stat.S_IMODE(root.stat().st_mode) == 0o700
    assert disk_cache.put(disk_cache.key("x"), ".so", b"x").is_relative_to(root)


def test_a_folder_of_another_user_is_not_used(folder, monkeypatch):
    folder.mkdir(mode=0o700)
    monkeypatch.setattr(os, "geteuid", lambda: folder.stat().st_uid + 1)
    with pytest.warns(DynfixWarning, match="belongs to user"):
        assert disk_cache.root() != folder


def test_a_folder_that_cannot_be_made_is_replaced(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DYNFIX_CACHE_DIR", str(tmp_path / "file" / "kernels"))
    with pytest.warns(DynfixWarning, match="cannot be made"):
        assert disk_cache.root().is_dir()


def test_where_the_cache_lies(tmp_path, monkeypatch):
    monkeypatch.delenv("DYNFIX_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert disk_cache.root() == tmp_path / "xdg" / "dynfix"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert disk_cache.root() == tmp_path / "home" / ".cache" / "dynfix"


def test_a_folder_that_was_deleted_is_made_again(folder):
    disk_cache.put(disk_cache.key("x"), ".so", b"x")
    subprocess.run(["rm", "-rf", str(folder)], check=True)
    assert disk_cache.get(disk_cache.key("x"), ".so") is None
    assert disk_cache.put(disk_cache.key("x"), ".so", b"x").exists()


KILLED = """
import os
from dynfix.runtime.cache import disk_cache as cache
with cache.workspace() as work, cache.made_in(work, "made.so") as made:
    work.create(made, b"half a library")
    os._exit(0)
"""


def test_what_killed_processes_left_is_swept_after_a_day(folder):
    for age in (100_000, 10):
        subprocess.run([sys.executable, "-c", KILLED], check=True)
        newest = max((folder / "work").iterdir(), key=os.path.getmtime)
        os.utime(newest, (time.time() - age,) * 2)
    (newest / "notes.txt").write_text("mine")
    subprocess.run(
        [sys.executable, "-c", "from dynfix.runtime.cache import disk_cache as cache; cache.root()"]
    )
    assert list((folder / "work").iterdir()) == [newest]
    os.utime(newest, (time.time() - 100_000,) * 2)
    subprocess.run(
        [sys.executable, "-c", "from dynfix.runtime.cache import disk_cache as cache; cache.root()"]
    )
    assert {path.name for path in newest.iterdir()} == {".dynfix-cache", "notes.txt"}


def test_a_process_that_ends_leaves_no_working_folder(folder):
    subprocess.run(
        [
            sys.executable,
            "-c",
            "from dynfix.runtime.cache import disk_cache as cache; cache.put('ab' * 32, '.x', b'x')",
        ]
    )
    assert not list((folder / "work").iterdir()) and list((folder / "ab").iterdir())


WRITER = """
import sys
from dynfix.runtime.cache import disk_cache as cache
for i in range(150):
    key = cache.key(str(i))
    found = cache.read(key, ".bin")
    assert found is None or found == str(i).encode() * 1000, i
    cache.put(key, ".bin", str(i).encode() * 1000)
    assert cache.read(key, ".bin") == str(i).encode() * 1000, i
"""


def test_processes_at_once(folder):
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER], stderr=subprocess.PIPE) for _ in range(3)
    ]
    for writer in writers:
        _, stderr = writer.communicate(timeout=60)
        assert writer.returncode == 0, stderr.decode()
    assert not list(folder.glob("work/*"))
