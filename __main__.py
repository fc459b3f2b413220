"""`python -m dynfix`: the command `dynfix`."""

import sys

from .codemods.cli.command import main

if __name__ == "__main__":
    sys.exit(main())
