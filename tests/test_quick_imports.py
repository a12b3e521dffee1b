"""What is imported for nothing, and that it is there for what needs it."""

from __future__ import annotations

import subprocess
import sys

STEP = """
import sys, torch
from train_core.quick_imports import defer_dynamo
defer_dynamo()
model = torch.nn.Linear(3, 2)
optimizer = torch.optim.AdamW(model.parameters())
def step():
    optimizer.zero_grad()
    model(torch.ones(4, 3)).sum().backward()
    optimizer.step()
step()
assert "torch._dynamo.config" not in sys.modules
assert "sympy" not in sys.modules
"""


def passes(code: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr


def test_an_optimizer_steps_without_the_compiler() -> None:
    passes(STEP)


def test_the_compiler_is_there_for_what_is_compiled_later() -> None:
    compiled = """
never_compiled = torch._disable_dynamo(lambda x: x * 3)
assert never_compiled(torch.ones(1)) == 3
assert "torch._dynamo.config" not in sys.modules
import torch._dynamo.config
assert torch._dynamo is sys.modules["torch._dynamo"]
graphs = []
def backend(graph, inputs):
    graphs.append(graph.code)
    return graph.forward
def compiled(x):
    return never_compiled(x + 1) - 2
assert torch.compile(compiled, backend=backend)(torch.ones(1)) == 4
assert any("+" in code for code in graphs), graphs
assert not any("*" in code for code in graphs), graphs
step()
"""
    passes(STEP + compiled)


def test_a_look_through_all_modules_does_not_load_the_compiler() -> None:
    """torch looks for the file of a function so, while it imports what shards a model."""
    look = """
import inspect
made = eval("lambda: None", {"__name__": "nowhere"})
inspect.getmodule(made.__code__)
assert "torch._dynamo.config" not in sys.modules
import torch.distributed.tensor
step()
"""
    passes(STEP + look)


def test_a_training_on_several_ranks_can_begin_after_it() -> None:
    group = """
import os, torch.distributed as dist
store = dist.HashStore()
dist.init_process_group("gloo", store=store, rank=0, world_size=1)
dist.destroy_process_group()
step()
"""
    passes(STEP + group)


def test_torchmetrics_leaves_the_real_scipy_signal_to_those_who_need_it() -> None:
    passes("""
import sys
import train_core.quick_imports
assert "torchmetrics" in sys.modules and "scipy.signal" not in sys.modules
from scipy.signal import butter
assert butter(1, 0.5)
""")
