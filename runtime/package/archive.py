"""The file of a package: a zip archive of uncompressed parts, so that they can be mapped, and a
manifest (JSON) that names each part with its size and hash. The archive's comment holds a hash of
every other byte, so that nothing in the file can change unnoticed. Loads no torch, runs nothing.

Whoever writes a package can have it run code: kernels are code. The hashes show damage, and, where
the reader knows the digest, that it is the very package.
"""

import contextlib
import hashlib
import io
import json
import mmap
import os
import re
import struct
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO, TypeVar

from ..errors import PackageError

FORMAT = 1
MANIFEST = "manifest.json"
LARGEST_MANIFEST = 1 << 28  # bytes
_ALIGNMENT = 64  # bytes, of what is mapped
_TITLE = b"dynfix package "
_COMMENT = re.compile(rb"dynfix package (\d{1,6}) ([0-9a-f]{64})")
_END = struct.Struct("<4s4H2LH")  # zip's end record, before its comment
_HEAD = b"PK\x03\x04"  # of each part
_NAME = re.compile(r"[a-z]+/[0-9A-Za-z_.-]{1,200}")
_PADDING = 0xD935  # the identifier of zip's field for alignment
_EPOCH = (1980, 1, 1, 0, 0, 0)


_Bytes = TypeVar("_Bytes", bytes, memoryview)


# ---- writing


def write(path: str, manifest: dict[str, Any], parts: Mapping[str, Any]) -> str:
    """Write a package with these `parts` (names and buffers), by atomic rename; its digest. Adds
    the parts and the format to the manifest. Raises OSError."""
    listed = {
        name: {"size": memoryview(part).nbytes, "sha256": hashlib.sha256(part).hexdigest()}
        for name, part in parts.items()
    }
    text = json.dumps({"format": FORMAT, **manifest, "parts": listed}, indent=1, allow_nan=False)
    with replacing(path) as file:
        return _write(file, {MANIFEST: text.encode(), **parts})


@contextlib.contextmanager
def replacing(path: str) -> Iterator[BinaryIO]:
    """A new file that takes the place of `path` when it is whole: who has the old one mapped keeps
    it."""
    handle, made = tempfile.mkstemp(prefix=".dynfix-", dir=os.path.dirname(os.path.abspath(path)))
    try:
        with open(handle, "w+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(made, 0o666 & ~_umask())
        os.replace(made, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(made)
        raise


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _write(file: BinaryIO, parts: Mapping[str, Any]) -> str:
    blank = _TITLE + b"%d " % FORMAT + b"0" * 64
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, part in parts.items():
            archive.writestr(_info(name, part, file.tell()), part)
        archive.comment = blank
    file.seek(0)
    with (
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
        memoryview(mapped) as whole,
    ):
        digest = _outer_hash(whole, _spans(file, whole))
    file.seek(-64, os.SEEK_END)
    file.write(digest.encode())
    return digest


def _info(name: str, part: Any, start: int) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name, _EPOCH)
    info.file_size = memoryview(part).nbytes
    # zipfile adds a field of 20 bytes for what may not fit 32 bits
    large = 20 if info.file_size * 1.05 > zipfile.ZIP64_LIMIT else 0
    gap = -(start + 30 + len(name) + large + 4) % _ALIGNMENT
    info.extra = struct.pack("<HH", _PADDING, gap) + bytes(gap)
    return info


# ---- reading


class Archive:
    """A package that is open. `manifest`: what it says of itself; `digest`: the hash that stands
    for the whole file. A part is checked when it is asked for. Raises PackageError for a file that
    is none, or damaged, or of another format; OSError. `data`: what the file holds, if it was
    read."""

    def __init__(self, path: str | os.PathLike[str], data: bytes | None = None) -> None:
        self.path = os.fspath(path)
        with open(self.path, "rb") if data is None else io.BytesIO(data) as file:
            if not file.seek(0, os.SEEK_END):
                raise PackageError(f"{self.path} is empty")
            if data is not None:
                self._whole = memoryview(bytearray(data))
            else:  # private: what calls write into weights stays in this process
                self._whole = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
            self.digest = self._stated_digest()
            with self._refusing():
                self._places = _spans(file, self._whole)
        if _outer_hash(self._whole, self._places) != self.digest:
            raise self._damaged("its table of contents is not the one that was written")
        self.manifest = self._manifest()
        self._parts: dict[str, Any] = self.manifest["parts"]
        if {MANIFEST, *self._parts} != self._places.keys():
            raise self._damaged("its parts are not those that it names")

    def copy(self, path: str | os.PathLike[str]) -> None:
        """Write the file as it was opened to `path`. Raises OSError."""
        with replacing(os.fspath(path)) as file:
            file.write(self._whole)

    def _stated_digest(self) -> str:
        length = len(_TITLE) + len(b"%d " % FORMAT) + 64
        tail = bytes(self._whole[-(_END.size + length + 8) :])
        found = _COMMENT.search(tail)
        if found is None:
            kind = "is damaged, or cut off" if bytes(self._whole[:4]) == _HEAD else "is no package"
            raise PackageError(f"{self.path} {kind}: it does not end as packages of dynfix do")
        if int(found[1]) != FORMAT:
            raise PackageError(
                f"{self.path} is of package format {int(found[1])}, this dynfix reads {FORMAT}:"
                " load it with the dynfix that wrote it, or package the model again"
            )
        if found.end() != len(tail):
            raise self._damaged("something follows its end")
        return found[2].decode()

    def _damaged(self, why: str) -> PackageError:
        return PackageError(f"{self.path} is damaged: {why}. Copy it again")

    @contextlib.contextmanager
    def _refusing(self) -> Iterator[None]:
        try:
            yield
        except (zipfile.BadZipFile, ValueError, struct.error, NotImplementedError) as error:
            raise self._damaged(str(error)) from error

    def _manifest(self) -> dict[str, Any]:
        with self._refusing():
            start, end = self._places.get(MANIFEST, (0, 0))
            if not 0 < end - start <= LARGEST_MANIFEST:
                raise ValueError("it has no manifest")
            found = json.loads(bytes(self._whole[start:end]))
            if not isinstance(found, dict) or not isinstance(found.get("parts"), dict):
                raise ValueError("its manifest names no parts")
        if found.get("format") != FORMAT:
            raise self._damaged("its manifest is of another format")
        return found

    def copied(self, name: str) -> bytes:
        """The bytes of a part, which nobody can change once they are checked."""
        return self._checked(name, bytes(self._span(name)))

    def mapped(self, name: str) -> memoryview:
        """The bytes of a part where the file is mapped: writes stay in this process."""
        return self._checked(name, self._span(name))

    def _span(self, name: str) -> memoryview:
        if name not in self._parts:
            raise self._damaged(f"{name} is missing")
        start, end = self._places[name]
        return self._whole[start:end]

    def _checked(self, name: str, found: _Bytes) -> _Bytes:
        listed = self._parts[name]
        if len(found) != listed["size"] or hashlib.sha256(found).hexdigest() != listed["sha256"]:
            raise self._damaged(f"{name} has changed since it was written")
        return found


def _spans(file: Any, whole: memoryview) -> dict[str, tuple[int, int]]:
    """Where the bytes of each part begin and end. Raises ValueError, BadZipFile."""
    places: dict[str, tuple[int, int]] = {}
    with zipfile.ZipFile(file) as archive:
        for info in archive.infolist():
            name = info.filename
            if name != MANIFEST and not (_NAME.fullmatch(name) and ".." not in name):
                raise ValueError(f"{name!r} is no name of a part")
            if name in places:
                raise ValueError(f"{name!r} is there twice")
            if info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size:
                raise ValueError(f"{name!r} is compressed")
            head = info.header_offset
            if bytes(whole[head : head + 4]) != _HEAD:
                raise ValueError(f"{name!r} is not where it should be")
            start = head + 30 + sum(struct.unpack_from("<HH", whole, head + 26))
            places[name] = start, start + info.file_size
    last = 0
    for start, end in sorted(places.values()):
        if not last <= start <= end <= len(whole):
            raise ValueError("its parts overlap, or are cut off")
        last = end
    return places


def _outer_hash(whole: memoryview, places: Mapping[str, tuple[int, int]]) -> str:
    """A hash of the manifest and of all that is no part: headers, gaps, the table of contents."""
    digest, last = hashlib.sha256(), 0
    for name, (start, end) in sorted(places.items(), key=lambda item: item[1]):
        digest.update(whole[last : end if name == MANIFEST else start])
        last = end
    digest.update(whole[last:-64])
    return digest.hexdigest()
