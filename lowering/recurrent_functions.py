"""torch's functions of recurrent layers, by kind."""

import functools
from typing import Any

import torch

KINDS = ("lstm", "gru", "rnn_tanh", "rnn_relu")


@functools.cache
def kind_of_function() -> dict[Any, str]:
    """Each of the functions, and its kind."""
    places = (torch, torch._VF)
    return {getattr(place, kind): kind for kind in KINDS for place in places}
