"""`python -m dynfix`: the command `dynfix`."""

import os
import sys

# `python -m` looks for modules in the folder at hand first. That is the checkout to be looked at,
# and its `argparse.py` is not ours to run.
# Only `os` and `sys`, which are loaded already, may be asked until then.
try:
    if sys.path and sys.path[0] in ("", os.getcwd()):
        del sys.path[0]
except OSError:  # the folder is gone
    pass

from .codemods.cli.command import main

if __name__ == "__main__":
    sys.exit(main())
