"""The engine on a GPU: what it computes, checked, and how fast, in one bundle, within a time of its own.

`PYTHONPATH=. python bench gpu --output DIR` runs `command.main`. It needs the repository, PyTorch with CUDA,
Transformers, pytest and the engine's few packages, and no network: models are made on the spot, at random.
"""

from gpu.command import main

__all__ = ["main"]
