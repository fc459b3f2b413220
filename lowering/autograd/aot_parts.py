"""The parts of AOTAutograd that run around compiled graphs.

They import each other in a circle, unless `aot_autograd` is loaded first, which loads the
partitioner, NetworkX and Inductor's caches: that is left out where somebody else, as torch's
optimizers do, has loaded the parts already.
"""

import importlib
import sys

if "torch._functorch._aot_autograd.runtime_wrappers" not in sys.modules:
    importlib.import_module("torch._functorch.aot_autograd")

from torch._functorch._aot_autograd import (
    descriptors,
    functional_utils,
    runtime_wrappers,
    schemas,
)

__all__ = ["descriptors", "functional_utils", "runtime_wrappers", "schemas"]
