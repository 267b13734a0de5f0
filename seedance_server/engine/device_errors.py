"""What a device says when it fails, in the engine's words.

Lack of memory has a name of its own, for a smaller step may do, whoever noticed it: PyTorch's allocator, the
driver or a library. Anything else that CUDA reports is sticky: the same error answers every later call of the
process. It must not know what was asked of the device.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from seedance_server.engine.errors import DeviceFailed, OutOfDeviceMemory

__all__ = ["device_errors", "is_lack_of_memory"]

_NO_MEMORY = ("CUDA error: out of memory", "ALLOC_FAILED")
_STICKY = ("CUDA error", "cuDNN error", "cuDNN Frontend error", "CUDA driver error")


def is_lack_of_memory(error: RuntimeError) -> bool:
    """Whether the device refused an allocation: its allocator's own error, or what others say of one."""
    return isinstance(error, torch.OutOfMemoryError) or any(words in str(error) for words in _NO_MEMORY)


@contextmanager
def device_errors() -> Iterator[None]:
    """Run the block; what isn't the device's stays as it is.

    Raises:
        OutOfDeviceMemory: The device refused an allocation.
        DeviceFailed: It is of no use any more.
    """
    try:
        yield
    except RuntimeError as error:  # not all of them are a torch.AcceleratorError
        if is_lack_of_memory(error):
            raise OutOfDeviceMemory(_first_line(error)) from error
        if not any(words in str(error) for words in _STICKY):
            raise
        raise DeviceFailed(_first_line(error)) from error


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
