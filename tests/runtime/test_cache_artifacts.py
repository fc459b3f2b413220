"""The kernels of a process in one file, and back."""

import io
import zipfile

import pytest
from dynfix import DynfixError, load_cache_artifacts, save_cache_artifacts
from dynfix.runtime.cache import disk_cache

KEY = disk_cache.key("a kernel")


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """`use(name)` switches to the cache folder of that name."""
    monkeypatch.setattr(disk_cache, "used", {})

    def use(name):
        monkeypatch.setenv("DYNFIX_CACHE_DIR", str(tmp_path / name))

    use("one")
    return use


def test_saved_here_is_found_there(folders):
    assert save_cache_artifacts() is None
    disk_cache.put(KEY, ".name.so", b"machine code")
    data, info = save_cache_artifacts()
    assert info.artifacts == (f"{KEY}.name.so",) and not info.empty()
    folders("two")
    assert disk_cache.get(KEY, ".name.so") is None
    assert load_cache_artifacts(data) == info
    assert disk_cache.read(KEY, ".name.so") == b"machine code"


def test_what_was_only_found_is_saved_as_well(folders):
    disk_cache.put(KEY, ".json", b"{}")
    disk_cache.used.clear()
    disk_cache.read(KEY, ".json")
    assert save_cache_artifacts()[1].artifacts == (f"{KEY}.json",)


def archive(**files):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as file:
        for name, data in files.items():
            file.writestr(name, data)
    return packed.getvalue()


@pytest.mark.parametrize(
    "data",
    [
        b"no archive",
        b"",
        archive(**{f"../{KEY}.so/00": b""}),
        archive(**{f"{KEY}.so/{'0' * 64}": b"changed"}),
        archive(**{f"{KEY}/../../x/00": b""}),
    ],
    ids=["no archive", "nothing", "outside", "changed", "above"],
)
def test_what_is_damaged_is_refused_whole(folders, data):
    with pytest.raises(DynfixError, match="no cache artifacts"):
        load_cache_artifacts(data)
    assert disk_cache.get(KEY, ".so") is None
