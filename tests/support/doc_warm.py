"""What a server of forked processes loads for the documentation's commands: torch and the compiler,
once they have compiled a training step."""

import os
import signal
import sys

import dynfix
import torch
import torch._dynamo

torch.set_num_threads(1)
_layer = torch.nn.Linear(2, 2)
dynfix.compile(_layer)(torch.ones(2, 2)).sum().backward()
dynfix.reset()
os.register_at_fork(after_in_child=lambda: signal.alarm(300))  # a command that hangs ends
sys.stdout.reconfigure(line_buffering=True)  # both streams go to one file, in order
