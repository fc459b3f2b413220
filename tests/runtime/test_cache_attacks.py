"""Planted and swapped folders, files and links: nothing foreign is loaded, deleted or overwritten,
and the program gives what it gives in eager, with one message at most."""

import contextlib
import ctypes
import hashlib
import marshal
import os
import shutil
import socket
import subprocess
import time
import warnings
from pathlib import Path

import dynfix
import pytest
import torch
from dynfix.runtime import build, compilers, diagnostics, torch_headers
from dynfix.runtime.cache import disk_cache, entries
from dynfix.runtime.guards import guard_native

if build.find_compiler() is None or not hasattr(os, "geteuid"):
    pytest.skip("no C++ compiler, or no owners of files here", allow_module_level=True)

OLD = time.time() - 3 * 86_400
HASH = ".sha256"


def model(x, w):
    return torch.tanh(x * w + 1).sum(-1)


def gradients(fn, call):
    x = torch.linspace(-1, 1 + call, 32).reshape(4, 8)
    w = torch.linspace(0, 2, 8).requires_grad_()
    result = fn(x, w)
    result.square().sum().backward()
    return result.detach(), w.grad


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A cache with all that the program asks for, and a library that tells when it is loaded."""
    folder = tmp_path_factory.mktemp("built")
    evil = folder / "evil.so"
    text = f'#include <cstdio>\n__attribute__((constructor)) void f() {{ fopen("{folder}/met", "w"); }}'
    (folder / "evil.cpp").write_text(text)
    command = [*build.find_compiler().command, "-shared", "-fPIC", str(folder / "evil.cpp")]
    subprocess.run([*command, "-o", str(evil)], check=True)
    made = {}

    def run(command, real=compilers.run):
        """Each library is built once."""
        source, target = (next(w for w in command if w.endswith(end)) for end in (".cpp", ".so"))
        text = Path(source).read_text()
        if text not in made:
            done = real(command)
            made[text] = done, Path(target).read_bytes() if done.returncode == 0 else None
        done, data = made[text]
        if data is not None:
            Path(target).write_bytes(data)
            os.chmod(target, 0o600)
        return done

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DYNFIX_CACHE_DIR", str(folder / "cache"))
        patch.setattr(compilers, "run", run)
        patch.setattr(guard_native._engine, "failed", "not now")
        patch.setattr(torch_headers._Parts, "patience", -1)
        compiled = dynfix.compile(model)
        for call in range(3):
            gradients(compiled, call)
        assert list((folder / "cache").rglob("*.so")) and list((folder / "cache").rglob("*.code"))
        yield folder


class Place:
    """Where an attack happens. `root`: a copy of the cache; `outside`: the user's own folder."""

    def __init__(self, built, tmp_path, patch):
        self.built, self.patch = built, patch
        self.root, self.outside = tmp_path / "cache", tmp_path / "outside"
        shutil.copytree(built / "cache", self.root, symlinks=True)
        self.outside.mkdir(mode=0o700)
        for name in ("notes.txt", "build-1/a.o", "ab.program"):
            (self.outside / name).parent.mkdir(exist_ok=True)
            (self.outside / name).write_text("the user's")
        self.given, self.foreign, self.restores = set(), {}, []

    def files(self, suffix):
        found = [p for p in self.root.rglob(f"*{suffix}") if p.is_file()]
        assert found
        return found

    def evil(self, suffix=".so"):
        if suffix == ".so":
            return (self.built / "evil.so").read_bytes()
        met = str(self.built / "met")
        return marshal.dumps(compile(f"open({met!r}, 'w')", "evil", "exec"))

    def poison(self, suffix=".so"):
        """All stored files of a kind are an attacker's, with the right hash."""
        for path in self.files(suffix):
            data = self.evil(suffix)
            path.write_bytes(data)
            path.with_name(path.name + HASH).write_text(hashlib.sha256(data).hexdigest())

    def give_away(self, path):
        """To another user; who may not do that tells `fstat` so."""
        if os.geteuid() == 0:
            os.chown(path, 12345, 12345)
            return
        info = os.stat(path)
        self.given.add((info.st_dev, info.st_ino))
        for name in ("fstat", "stat", "lstat"):
            self.patch.setattr(os, name, self._seen(getattr(os, name)))

    def _seen(self, real):
        def stat(*args, **kwargs):
            info = real(*args, **kwargs)
            given = (info.st_dev, info.st_ino) in self.given
            return os.stat_result((*info[:4], info.st_uid + 1, *info[5:])) if given else info

        return stat

    def plant(self, path, text="the user's"):
        """A file of the user's."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        os.utime(path, (OLD, OLD))

    def snapshot(self):
        return {
            path: os.readlink(path) if path.is_symlink() else path.read_bytes()
            for top in (self.outside, *self.foreign.values())
            for path in ([top] if top.is_symlink() or not top.is_dir() else sorted(top.rglob("*")))
            if path.is_symlink() or path.is_file()
        }

    def keep(self, *paths):
        """These have to be there afterwards, as they are."""
        self.foreign.update({path: path for path in paths})


ATTACKS = {}


def attack(fn):
    ATTACKS[fn.__name__] = fn
    return fn


def each_file(name, change, suffixes=(".so", ".code"), poisoned=True):
    """An attack on each stored file of a kind."""
    for suffix in suffixes:

        def run(place, suffix=suffix):
            if poisoned:
                place.poison(suffix)
            for path in place.files(suffix):
                change(place, path)

        ATTACKS[f"{name} {suffix}"] = run


# ---- the root


@attack
def root_for_all(place):
    place.poison()
    place.root.chmod(0o777)
    place.keep(place.root)


@attack
def root_for_the_group(place):
    place.poison(".code")
    place.root.chmod(0o770)
    place.keep(place.root)


@attack
def root_of_another_user(place):
    place.poison()
    place.give_away(place.root)
    place.keep(place.root)


@attack
def root_is_a_link_to_another_user(place):
    place.poison()
    place.root.rename(place.root.with_name("theirs"))
    place.give_away(place.root.with_name("theirs"))
    place.root.symlink_to("theirs")
    place.keep(place.root.with_name("theirs"))


@attack
def root_is_a_link_to_the_users_files(place):
    shutil.rmtree(place.root)
    place.root.symlink_to(place.outside)


@attack
def root_is_a_link_in_a_circle(place):
    shutil.rmtree(place.root)
    place.root.symlink_to(place.root.name)
    place.keep(place.root)


@attack
def root_is_a_file(place):
    shutil.rmtree(place.root)
    place.plant(place.root)
    place.keep(place.root)


@attack
def root_is_a_pipe(place):
    shutil.rmtree(place.root)
    os.mkfifo(place.root)


@attack
def root_holds_the_users_files(place):
    shutil.rmtree(place.root)
    shutil.copytree(place.outside, place.root)
    place.keep(place.root)


@attack
def root_and_the_folder_inside_hold_the_users_files(place):
    shutil.rmtree(place.root)
    place.plant(place.root / "dynfix-1" / "mine.txt")
    place.plant(place.root / "mine.txt")
    place.keep(place.root)


@attack
def root_has_a_mark_that_is_a_link(place):
    shutil.rmtree(place.root)
    place.plant(place.root / "mine.txt")
    (place.root / ".dynfix-cache").symlink_to(place.outside / "notes.txt")
    place.keep(place.root)


@attack
def root_has_a_mark_of_another_user(place):
    place.poison()
    place.give_away(place.root / ".dynfix-cache")


# ---- folders inside


def folders(place):
    return {path.parent for path in place.files(HASH)}


@attack
def folders_for_all(place):
    place.poison()
    place.poison(".code")
    for folder in folders(place):
        folder.chmod(0o777)
    place.keep(*folders(place))


@attack
def folders_of_another_user(place):
    place.poison()
    for folder in folders(place):
        place.give_away(folder)
    place.keep(*folders(place))


@attack
def folders_are_links(place):
    place.poison()
    for folder in folders(place):
        folder.rename(place.outside / folder.name)
        folder.symlink_to(place.outside / folder.name)


@attack
def folders_are_links_to_nothing(place):
    for folder in folders(place):
        shutil.rmtree(folder)
        folder.symlink_to(place.outside / "new")


@attack
def folders_are_files(place):
    for folder in folders(place):
        shutil.rmtree(folder)
        place.plant(folder)
        place.keep(folder)


@attack
def folders_are_pipes(place):
    for folder in folders(place):
        shutil.rmtree(folder)
        os.mkfifo(folder)


# ---- files


def be_writable(place, path):
    path.chmod(0o666)
    place.keep(path)


def be_anothers(place, path):
    place.give_away(path)
    place.keep(path)


def be_a_link(place, path):
    path.rename(place.outside / path.name)
    path.symlink_to(place.outside / path.name)
    place.keep(path)


def be_a_hard_link(place, path):
    os.link(path, place.outside / path.name)


def be_a_pipe(place, path):
    path.unlink()
    os.mkfifo(path)


def be_a_socket(place, path):
    path.unlink()
    with contextlib.chdir(path.parent), socket.socket(socket.AF_UNIX) as made:
        made.bind(path.name[:60])
    (path.parent / path.name[:60]).rename(path)


def be_a_folder(place, path):
    path.unlink()
    place.plant(path / "mine.txt")
    place.keep(path)


def lead_nowhere(place, path):
    path.unlink()
    path.symlink_to(place.outside / "nothing")
    place.keep(path)


each_file("writable for all", be_writable)
each_file("another user's", be_anothers)
each_file("a link", be_a_link)
each_file("a hard link", be_a_hard_link)
each_file("a pipe", be_a_pipe)
each_file("a folder", be_a_folder)
each_file("a link to nothing", lead_nowhere)
if hasattr(contextlib, "chdir"):
    each_file("a socket", be_a_socket, [".so"])
each_file("another user's", be_anothers, [".program", ".so" + HASH, ".code" + HASH], False)
each_file("a link", be_a_link, [".program", ".so" + HASH, ".cpp"], False)
each_file("a folder", be_a_folder, [".program", ".so" + HASH, ".cpp"], False)
each_file("cut", lambda place, path: os.truncate(path, 100), [".so", ".code", ".program"], False)
each_file("empty", lambda place, path: os.truncate(path, 0), [".so", ".code", ".program"], False)
each_file("gone", lambda place, path: path.unlink(), [".so", HASH, ".program"], False)


def flipped(place, path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


each_file("flipped", flipped, [".so", ".code", ".program", ".so" + HASH], False)


# ---- swaps between the check and the use


@attack
def library_swapped_as_it_is_loaded(place):
    def load(name, *args, real=ctypes.CDLL, **kwargs):
        for path in place.files(".so"):
            (path.parent / "new").write_bytes(place.evil())
            os.replace(path.parent / "new", path)
        return real(name, *args, **kwargs)

    place.patch.setattr(ctypes, "CDLL", load)


@attack
def library_swapped_when_it_was_found(place):
    def get(*args, real=disk_cache.get):
        found = real(*args)
        if found is not None and found.suffix == ".so":
            place.poison()
            found.chmod(0o666)
        return found

    place.patch.setattr(disk_cache, "get", get)


@attack
def root_swapped_as_a_library_is_loaded(place):
    theirs = place.root.with_name("theirs")
    shutil.copytree(place.root, theirs)

    def load(name, *args, real=ctypes.CDLL, **kwargs):
        if theirs.exists():
            place.root.rename(place.root.with_name("ours"))
            theirs.rename(place.root)
            place.poison()
            place.give_away(place.root)
        return real(name, *args, **kwargs)

    place.patch.setattr(ctypes, "CDLL", load)


@attack
def code_swapped_as_it_is_read(place):
    def loads(data, real=marshal.loads):
        place.poison(".code")
        return real(data)

    place.patch.setattr(marshal, "loads", loads)


@attack
def work_swapped_while_the_compiler_runs(place):
    for path in place.files(".so"):
        path.unlink()

    def run(command, real=compilers.run):
        done = real(command)
        if not (place.root / "gone").exists():
            (place.root / "work").rename(place.root / "gone")
            shutil.copytree(place.root / "gone", place.root / "work")
            for path in (place.root / "work").rglob("*.so"):
                path.write_bytes(place.evil())
            place.give_away(place.root / "work")
        return done

    place.patch.setattr(compilers, "run", run)


def swap_root(place, how):
    """Between the first call and the second."""

    def swap():
        place.root.rename(place.root.with_name("ours"))
        how()

    place.between = swap


@attack
def root_replaced_during_the_run(place):
    def how():
        shutil.copytree(place.root.with_name("ours"), place.root)
        place.poison()
        place.poison(".code")
        place.give_away(place.root)

    swap_root(place, how)


@attack
def root_replaced_by_a_link_during_the_run(place):
    def how():
        shutil.copytree(place.root.with_name("ours"), place.outside / "theirs")
        place.root.symlink_to(place.outside / "theirs")
        place.poison()

    swap_root(place, how)


@attack
def root_replaced_by_a_file_during_the_run(place):
    swap_root(place, lambda: place.plant(place.root))


@attack
def root_removed_during_the_run(place):
    swap_root(place, lambda: None)


# ---- what looks as if it was left by a build


NAMES = ("build-release", "probe-x", ".new-abc", "tmpabc", "dynfix-old", "work")


@attack
def users_files_in_each_folder(place):
    for folder in [place.root, *(path for path in place.root.rglob("*") if path.is_dir())]:
        for name in NAMES:
            for age, each in ((OLD, f"{name}1"), (time.time(), f"{name}2"), (OLD, f"{name}3")):
                target = folder / each
                place.plant(target / "mine.o" if each[-1] != "3" else target)
                os.utime(target, (age, age))
                place.keep(target)


@attack
def users_links_in_each_folder(place):
    (place.outside / ".dynfix-cache").touch()
    for folder in [place.root, *(path for path in place.root.rglob("*") if path.is_dir())]:
        for name in (*NAMES[:-1], "1-0123456789ab"):
            (folder / name).symlink_to(place.outside)
            os.utime(folder / name, (OLD, OLD), follow_symlinks=False)
            place.keep(folder / name)


@attack
def users_files_in_a_working_folder_of_ours(place):
    left = place.root / "work" / "1-0123456789ab"
    left.mkdir(parents=True, mode=0o700)
    (left / ".dynfix-cache").touch(mode=0o600)
    place.plant(left / "notes.txt")
    (left / "1-made.so").symlink_to(place.outside / "notes.txt")
    os.link(place.outside / "notes.txt", left / "2-made.so")
    os.utime(left, (OLD, OLD))
    place.keep(left)


@attack
def working_folder_without_a_mark(place):
    place.plant(place.root / "work" / "1-0123456789ab" / "1-made.so")
    os.utime(place.root / "work" / "1-0123456789ab", (OLD, OLD))
    place.keep(place.root / "work" / "1-0123456789ab")


@attack
def working_folders_are_a_link(place):
    shutil.rmtree(place.root / "work", ignore_errors=True)
    (place.root / "work").symlink_to(place.outside)
    place.keep(place.root / "work")
    for path in place.files(".so"):
        path.unlink()


@attack
def programs_of_the_user_where_room_is_made(place):
    place.patch.setattr(entries, "MAX_STORED_BYTES", 1 << 16)
    for name in ("ab/mine.program", f"ab/{'0' * 64}.x.program", "xy/big.program"):
        if name[3] != "0":
            place.plant(place.root / name, "x" * 100_000)
            place.keep(place.root / name)
    (place.root / "ab").mkdir(exist_ok=True)
    (place.root / "ab" / f"{'0' * 64}.program").symlink_to(place.outside / "ab.program")
    place.keep(place.root / "ab" / f"{'0' * 64}.program")
    for path in place.files(".program"):
        if len(path.name) > 64 and not path.is_symlink():
            path.unlink()


def test_there_are_many_attacks():
    assert len(ATTACKS) >= 60


@pytest.mark.parametrize("name", ATTACKS)
def test_nothing_foreign_is_loaded_deleted_or_overwritten(name, built, tmp_path, monkeypatch):
    place = Place(built, tmp_path, monkeypatch)
    place.between = lambda: None
    ATTACKS[name](place)
    before = place.snapshot()
    monkeypatch.setenv("DYNFIX_CACHE_DIR", str(place.root))
    diagnostics.reset()
    compiled = dynfix.compile(model)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for call in range(4):
            for got, wanted in zip(gradients(compiled, call), gradients(model, call), strict=True):
                torch.testing.assert_close(got, wanted)
            if call == 0:
                place.between()
    monkeypatch.undo()
    assert not (built / "met").exists()
    assert before == {path: now for path, now in place.snapshot().items() if path in before}
    messages = [str(each.message) for each in said if issubclass(each.category, UserWarning)]
    assert len(messages) <= 1, messages
    assert all("is not used: " in message for message in messages)
