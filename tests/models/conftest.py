"""Models are built from configurations, with random weights: nothing may ask the network for
anything."""

import os

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
