"""Files under `interpreted` run in a process of their own, where TRITON_INTERPRET=1 is set before
Triton is imported."""

import os
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))

collect_ignore = [] if os.environ.get("TRITON_INTERPRET") == "1" else ["interpreted"]
