"""Rewritten code on disk: used by the next process without LibCST, and never loaded from where
others can write."""

import marshal
import os
import subprocess
import sys
from pathlib import Path

import pytest
from comparing import load
from dynfix.rewriter.instrument import emit, rewrite_cache
from dynfix.runtime.cache import disk_cache
from plain_forms import Forms

HERE = Path(__file__).parent
SCRIPT = f"""
import sys
sys.path.insert(0, {str(HERE)!r})
from comparing import load, rewrite_all
module = load("functions")
count = rewrite_all(module)
print(count, "libcst" in sys.modules, module.methods_and_super([])[1])
"""


def run(folder, *flags):
    environment = {**os.environ, "DYNFIX_CACHE_DIR": str(folder), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *flags, "-c", SCRIPT],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split(maxsplit=2)


def test_a_second_process_needs_no_libcst(tmp_path):
    first = run(tmp_path)
    assert first[1] == "True"
    assert run(tmp_path) == [first[0], "False", first[2]]
    assert run(tmp_path, "-O")[1] == "True"  # other code, other entries


@pytest.fixture
def entry(tmp_path, monkeypatch):
    """A stored entry: its key, its file."""
    monkeypatch.setenv("DYNFIX_CACHE_DIR", str(tmp_path))
    fn = load("expressions").arithmetic
    emit.rewrite(fn, Forms)
    key = rewrite_cache.key(fn.__code__)
    assert rewrite_cache.load(key) is not None
    return key, disk_cache.path_for(key, disk_cache.CODE)


def test_folder_and_files_are_private(entry):
    assert entry[1].stat().st_mode & 0o777 == 0o600
    assert entry[1].parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("damage", [b"", b"x" * 10, b"y" * 5000, "cut", "flip", "not code"])
def test_damage_is_rebuilt(entry, damage):
    key, path = entry
    data = bytearray(path.read_bytes())
    if damage == "flip":
        data[-1] ^= 1
    if damage == "not code":
        disk_cache.replace(key, disk_cache.CODE, marshal.dumps({"a": 1}))
    else:
        path.write_bytes(data if damage == "flip" else data[:-20] if damage == "cut" else damage)
    assert rewrite_cache.load(key) is None
    fn = load("expressions").arithmetic
    emit.rewrite(fn, Forms)
    assert rewrite_cache.load(key) is not None


def test_a_file_that_others_can_write_is_not_loaded(entry):
    key, path = entry
    path.chmod(0o666)
    assert rewrite_cache.load(key) is None


def test_a_folder_that_others_can_write_is_not_used(entry):
    key, path = entry
    path.parent.chmod(0o777)
    assert rewrite_cache.load(key) is None
    other = key[:2] + "0" * 62
    with pytest.warns(UserWarning, match="can be written by others"):
        rewrite_cache.store(other, emit.rewrite.__code__)
    assert rewrite_cache.load(other) is not None
    assert not list(path.parent.glob(f"{other}*"))


def test_a_folder_that_is_a_link_is_not_used(entry, tmp_path):
    key, path = entry
    path.parent.rename(tmp_path / "elsewhere")
    path.parent.symlink_to(tmp_path / "elsewhere")
    assert rewrite_cache.load(key) is None


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give a file away"
)
@pytest.mark.parametrize("what", ["file", "folder"])
def test_what_another_user_owns_is_not_loaded(entry, what):
    key, path = entry
    os.chown(path if what == "file" else path.parent, 12345, 12345)
    assert rewrite_cache.load(key) is None


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give a folder away"
)
def test_nothing_is_made_in_the_folder_of_another_user(tmp_path, monkeypatch):
    place = tmp_path / "theirs"
    place.mkdir()
    os.chown(place, 12345, 12345)
    monkeypatch.setenv("DYNFIX_CACHE_DIR", str(place))
    with pytest.warns(UserWarning, match="belongs to user 12345"):
        rewrite_cache.store("ab" * 32, emit.rewrite.__code__)
    assert not list(place.iterdir())


def test_an_unwritable_place_does_no_harm(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DYNFIX_CACHE_DIR", str(tmp_path / "file"))
    assert emit.rewrite(load("expressions").slices, Forms)([]) == load("expressions").slices([])


def test_keys_differ(tmp_path, monkeypatch):
    module, other = load("expressions"), load("statements")
    keys = {rewrite_cache.key(fn.__code__) for fn in (module.said, other.said, module.arithmetic)}
    assert len(keys) == 3
    assert rewrite_cache.key(module.said.__code__) == rewrite_cache.key(
        load("expressions").said.__code__
    )
