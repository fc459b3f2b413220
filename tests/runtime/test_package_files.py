"""Files that are no package, or damaged, or for another machine: each is one error."""

import contextlib
import io
import json
import platform
import struct
import zipfile

import dynfix
import pytest
import torch
from dynfix.codemods.cli import command
from dynfix.runtime.errors import PackageError
from dynfix.runtime.package import archive, machine_code


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()).eval()
    path = tmp_path_factory.mktemp("package") / "model.dfx"
    dynfix.package(model, path, [((torch.ones(3, 4),), {}), ((torch.ones(5, 4),), {})])
    return path


def parts_of(path):
    with zipfile.ZipFile(path) as file:
        parts = {info.filename: file.read(info) for info in file.infolist()}
    return json.loads(parts.pop(archive.MANIFEST)), parts


def first(parts, kind):
    return next(name for name in parts if name.startswith(kind))


# ---- bytes


def start_of(data, kind):
    """Where the bytes of the first part of a kind begin."""
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        infos = file.infolist()
    head = next(info.header_offset for info in infos if info.filename.startswith(kind))
    return head + 30 + sum(struct.unpack_from("<HH", data, head + 26))


def flipped(data, at):
    return data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]


BYTES = {
    "empty": lambda data: b"",
    "text": lambda data: b"no package at all\n" * 20,
    "one byte short": lambda data: data[:-1],
    "half": lambda data: data[: len(data) // 2],
    "the head alone": lambda data: data[:20],
    "the tail alone": lambda data: data[-150:],
    "something behind": lambda data: data + b"\0",
    "something before": lambda data: b"\0" + data,
    "another version of the format": lambda data: data.replace(b"package 1 ", b"package 7 "),
    "the first byte": lambda data: flipped(data, 0),
    "a header's time": lambda data: flipped(data, 11),
    "a gap": lambda data: flipped(data, start_of(data, "manifest") - 1),
    "the manifest": lambda data: flipped(data, start_of(data, "manifest") + 40),
    "a version": lambda data: flipped(data, start_of(data, "versions/") + 40),
    "a kernel": lambda data: flipped(data, start_of(data, "kernels/") + 4000),
    "an extension": lambda data: flipped(data, start_of(data, "extensions/") + 4000),
    "a weight": lambda data: flipped(data, start_of(data, "weights/")),
    "the table of contents": lambda data: flipped(data, data.rindex(b"PK\1\2") + 20),
    "the end record": lambda data: flipped(data, data.rindex(b"PK\5\6") + 8),
    "the digest": lambda data: data[:-1] + (b"0" if data[-1:] != b"0" else b"1"),
    "zeros inside": lambda data: data[:2000] + bytes(3000) + data[5000:],
}


@pytest.mark.parametrize("damage", BYTES)
def test_changed_bytes_are_refused(package, tmp_path, damage):
    path = tmp_path / "damaged.dfx"
    path.write_bytes(BYTES[damage](package.read_bytes()))
    with pytest.raises(PackageError, match=r"damaged\.dfx is"):
        dynfix.load(path)


# ---- archives that are whole, but not as `package` writes them


def zipped(path, members, comment=None, **how):
    with zipfile.ZipFile(path, "w", **how) as file:
        for name, data in members:
            file.writestr(name, data)
        file.comment = comment or b""


def sealed(path, members):
    """With the hash of the rest of the file, as if `package` had written it."""
    with open(path, "w+b") as file, contextlib.suppress(ValueError):  # of names, when it is hashed
        archive._write(file, members)


def listed(package):
    manifest, parts = parts_of(package)
    return [(archive.MANIFEST, json.dumps(manifest).encode()), *parts.items()]


def swapped(package):
    found = dict(listed(package))
    one, other = [name for name in found if name.startswith("weights/")][:2]
    found[one], found[other] = found[other], found[one]
    return found


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_members_that_do_not_belong_there_are_refused(package, tmp_path):
    path = tmp_path / "foreign.dfx"
    members = listed(package)
    found = dict(members)
    weights = first(found, "weights/")
    every = {
        "swapped": swapped(package),
        "one missing": {name: data for name, data in members if name != weights},
        "one more": {**found, "weights/99": b"more"},
        "an absolute name": {**found, "/etc/passwd": b"x"},
        "a name that leads out": {**found, "kernels/../../x.so": b"x"},
        "no manifest": {name: data for name, data in members if name != archive.MANIFEST},
        "no JSON": {**found, archive.MANIFEST: b"{"},
        "another JSON": {**found, archive.MANIFEST: b"[]"},
    }
    for wrong, parts in every.items():
        sealed(path, parts)
        with pytest.raises(PackageError, match=r"foreign\.dfx is damaged"):
            dynfix.load(path)
            pytest.fail(wrong)
    zipped(path, members)  # without the hash
    with pytest.raises(PackageError, match="does not end as"):
        dynfix.load(path)
    comment = package.read_bytes()[-81:]
    for how, given in (("twice", [*members, members[-1]]), ("compressed", members)):
        packed = zipfile.ZIP_DEFLATED if how == "compressed" else zipfile.ZIP_STORED
        zipped(path, given, comment, compression=packed)
        with pytest.raises(PackageError, match=rf"is damaged: .*{how}"):
            dynfix.load(path)


def version_with(**changes):
    def change(manifest, parts):
        name = first(parts, "versions/")
        parts[name] = json.dumps({**json.loads(parts[name]), **changes}).encode()

    return change


def program_with(step):
    def change(manifest, parts):
        name = first(parts, "versions/")
        data = json.loads(parts[name])
        programs = data["steps"][0]["program"]["programs"]
        next(iter(programs.values()))["steps"].insert(0, step)
        parts[name] = json.dumps(data).encode()

    return change


def weight_with(**changes):
    return lambda manifest, parts: manifest["weights"][0].update(changes)


def part_with(kind, data):
    return lambda manifest, parts: parts.update({first(parts, kind): data})


CONTENT = {
    "a kernel that is none": (part_with("kernels/", b"\x7fELF" + bytes(500)), "cannot be loaded"),
    "an extension that is none": (part_with("extensions/", bytes(500)), "cannot be loaded"),
    "a version that is none": (part_with("versions/", b"[]"), "damaged"),
    "a weight beyond its memory": (weight_with(shape=[4000, 4]), "damaged"),
    "a weight before its memory": (weight_with(offset=-4), "damaged"),
    "a weight of no dtype": (weight_with(dtype="load"), "damaged"),
    "a guard of no kind": (version_with(guards=[[["Arg", 0], ["Run", "x"], ""]]), "damaged"),
    "a path of no kind": (version_with(guards=[[["Obj", "x"], ["Length", 1], ""]]), "damaged"),
    "a condition of no names": (version_with(holds=["sizes", "1", ["if", 0, 0]]), "damaged"),
    "a condition that calls": (version_with(holds=["sizes", "exit()", []]), "damaged"),
    "a condition that reaches out": (version_with(holds=["sizes", "math.__loader__"]), "damaged"),
    "an output of no recipe": (version_with(output=["recipe", 10**6]), "damaged"),
    "a function that is not listed": (
        version_with(output=["function", "os:system"]),
        "damaged",
    ),
    "a step of no kind": (program_with(["Import", "os"]), "damaged"),
    "a step that calls Python": (
        program_with(
            ["Extern", "os:system", ["tuple"], ["dict"], None, ["tuple"], ["tuple"], 1, 1]
        ),
        "cannot be loaded",
    ),
    "a name that is source": (program_with(["Free", ["tuple", "x; import os"]]), "damaged"),
    "another torch": (
        lambda manifest, parts: manifest["made_by"].update(torch="1.0.0"),
        "made with torch 1.0.0",
    ),
    "another machine": (
        lambda manifest, parts: [one.update(machine="riscv64") for one in manifest["targets"]],
        "riscv64",
    ),
    "another processor": (
        lambda manifest, parts: [one.update(flags=["avx1024"]) for one in manifest["targets"]],
        "a processor with avx1024",
    ),
}


@pytest.mark.parametrize("wrong", CONTENT)
def test_what_does_not_fit_is_refused(package, tmp_path, wrong, monkeypatch):
    for known in ("_provided", "_extensions"):
        monkeypatch.setattr(f"dynfix.runtime.build.{known}", {})
    change, says = CONTENT[wrong]
    manifest, parts = parts_of(package)
    change(manifest, parts)
    path = tmp_path / "other.dfx"
    archive.write(str(path), manifest, parts)
    with pytest.raises(PackageError, match=says) as caught:
        dynfix.load(path)
    assert "other.dfx" in str(caught.value)


def test_an_expected_digest_is_compared(package, tmp_path):
    digest = dynfix.load(package).digest
    assert dynfix.load(package, digest=digest).digest == digest
    with pytest.raises(PackageError, match=f"has the digest {digest}, not 0000"):
        dynfix.load(package, digest="0" * 64)


def test_inspect_shows_what_is_inside(package, tmp_path, capsys):
    assert command.main(["inspect", str(package)]) == 0
    shown = capsys.readouterr().out
    assert (
        shown.startswith("Sequential: dynfix ") and "version 1\n  input   input: float32" in shown
    )
    assert "0.weight: float32[4, 4]" in shown and dynfix.load(package).digest in shown
    assert command.main(["inspect", "--json", str(package)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["model"] == "Sequential" and found["format"] == 1 and found["digest"] in shown
    for wrong in (b"", flipped(package.read_bytes(), start_of(package.read_bytes(), "weights/"))):
        (tmp_path / "wrong.dfx").write_bytes(wrong)
        assert command.main(["inspect", str(tmp_path / "wrong.dfx")]) == 2
        assert "wrong.dfx is" in capsys.readouterr().err
    archive.write(str(tmp_path / "wrong.dfx"), {}, {})
    assert command.main(["inspect", str(tmp_path / "wrong.dfx")]) == 2
    assert "wrong.dfx has another manifest" in capsys.readouterr().err


def test_the_same_parts_give_the_same_file(package, tmp_path):
    manifest, parts = parts_of(package)
    del manifest["parts"], manifest["format"]
    again = tmp_path / "again.dfx"
    archive.write(str(again), manifest, parts)
    assert again.read_bytes() == package.read_bytes()


def test_parts_can_be_mapped(package):
    with zipfile.ZipFile(package) as file:
        assert all(info.compress_type == zipfile.ZIP_STORED for info in file.infolist())
    data = package.read_bytes()
    assert not any(start_of(data, kind) % 64 for kind in ("weights/", "kernels/"))


def test_large_parts(tmp_path, monkeypatch):
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 1000)  # as if more did not fit 32 bits
    parts = {"weights/0": bytes(range(256)) * 8, "weights/1": b"small", "kernels/a.so": b"x" * 2000}
    archive.write(str(tmp_path / "large.dfx"), {}, parts)
    found = archive.Archive(tmp_path / "large.dfx")
    assert {name: bytes(found.mapped(name)) for name in parts} == parts
    data = (tmp_path / "large.dfx").read_bytes()
    assert not any(start_of(data, kind) % 64 for kind in parts)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="for processors of other kinds")
def test_an_older_processor_has_kernels_of_its_own(package, monkeypatch):
    given = torch.randn(6, 4)
    expected = dynfix.load(package)(given)
    monkeypatch.setattr(machine_code, "_flags", lambda: {*machine_code._OF_PORTABLE})
    read = []
    copied = archive.Archive.copied
    monkeypatch.setattr(
        archive.Archive, "copied", lambda self, name: (read.append(name), copied(self, name))[1]
    )
    torch.testing.assert_close(dynfix.load(package)(given), expected)
    assert [name for name in read if name.startswith("kernels/x86-64-v3.")]
    assert not [name for name in read if name.startswith("kernels/native.")]


def test_code_is_loaded_without_a_descriptor_of_memory(package, monkeypatch):
    monkeypatch.delattr(machine_code.os, "memfd_create")
    assert dynfix.load(package)(torch.ones(2, 4)).shape == (2, 4)
