"""`dynfix inspect FILE`: what a package holds, without loading it."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator
from typing import Any

from ...runtime.errors import PackageError
from ...runtime.package.archive import Archive
from ..analysis.findings import CommandError
from .command_line import CLEAN
from .terminal import seen


def main(argv: list[str]) -> int:
    """Print the manifest of the file that is named; CommandError for what is no package. Every part
    is checked against its hash."""
    parser = argparse.ArgumentParser(prog="dynfix inspect", description=__doc__)
    parser.add_argument("file", metavar="FILE")
    parser.add_argument("--json", action="store_true", help="as JSON")
    options = parser.parse_args(argv)
    try:
        archive = Archive(options.file)
        for part in archive.manifest["parts"]:
            archive.mapped(part)
        lines = [*_lines(archive)]
    except PackageError as error:
        raise CommandError(str(error)) from error
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise CommandError(f"{options.file} has another manifest: {error!r}") from error
    if options.json:
        found = {"digest": archive.digest, **archive.manifest}
        lines = json.dumps(found, indent=1).splitlines()
    print("\n".join(map(seen, lines)))
    return CLEAN


def _lines(archive: Archive) -> Iterator[str]:
    manifest = archive.manifest
    made_by, names = manifest["made_by"], [target["name"] for target in manifest["targets"]]
    mode = ", in training mode" if manifest["training"] else ""
    yield f"{manifest['model']}{mode}: dynfix {made_by['dynfix']}, torch {made_by['torch']}"
    yield f"digest {archive.digest}"
    for target in manifest["targets"]:
        needs = " ".join(target["flags"])
        yield f"for {target['system']}, {target['machine']}, {target['name']}: {needs}"
    for number, version in enumerate(manifest["versions"], 1):
        yield f"version {number}"
        for given in version["inputs"]:
            yield f"  input   {given['name']}: {given['tensor']}{_at(given)}"
        for guard in version["guards"]:
            yield f"  guard   {guard['guard']}{_at(guard)}"
        for file in version["kernels"]:
            for name in names:
                part = manifest["parts"][f"kernels/{name}.{file}"]
                size, digest = part["size"], part["sha256"][:16]
                yield f"  kernels {file[:12]}, {name}: {size} bytes, sha256 {digest}"
    yield f"weights {_weights(manifest['weights'])}"
    for weight in manifest["weights"]:
        place = "" if weight["storage"] is not None else ", not inside"
        yield f"  {' = '.join(weight['names'])}: {weight['dtype']}{weight['shape']}{place}"


def _at(line: dict[str, Any]) -> str:
    return f"  ({line['line']})" if line["line"] else ""


def _weights(weights: list[Any]) -> str:
    total = sum(math.prod(weight["shape"]) for weight in weights)
    return f"({len(weights)} tensors, {total} elements)"
