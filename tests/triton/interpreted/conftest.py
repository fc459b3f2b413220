"""The operator tests of the C++ line, compiled with the Triton target instead."""

import importlib.util
import sys
from pathlib import Path

LOWERING = Path(__file__).parents[2] / "lowering"


def _package(name):
    spec = importlib.util.spec_from_file_location(
        name, LOWERING / "__init__.py", submodule_search_locations=[str(LOWERING)]
    )
    package = importlib.util.module_from_spec(spec)
    sys.modules[name] = package
    spec.loader.exec_module(package)


_package("lowering_tests")
harness = importlib.import_module("lowering_tests.harness")
_compiled = harness.compiled


def compiled(fn, *args, options=harness.CHECKED):
    return _compiled(fn, *args, options=options.replace(target="triton"))


harness.compiled = compiled
