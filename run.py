"""`python -m dynfix.run script.py`: the command `dynrun`."""

import sys

from .rewriter.dynrun import main

if __name__ == "__main__":
    sys.argv[0] = "dynrun"
    sys.exit(main())
