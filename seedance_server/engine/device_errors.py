"""What a device says when it fails, in the engine's words.

Lack of memory has a name of its own, for a smaller step may do. Anything else that CUDA reports is sticky:
the same error answers every later call of the process. It must not know what was asked of the device.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from seedance_server.engine.errors import DeviceFailed, OutOfDeviceMemory

__all__ = ["device_errors"]

_STICKY = ("CUDA error", "cuDNN error", "CUDA driver error")


@contextmanager
def device_errors() -> Iterator[None]:
    """Run the block; what isn't the device's stays as it is.

    Raises:
        OutOfDeviceMemory: The device refused an allocation.
        DeviceFailed: It is of no use any more.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise OutOfDeviceMemory(_first_line(error)) from error
    except RuntimeError as error:  # not all of them are a torch.AcceleratorError
        if not any(words in str(error) for words in _STICKY):
            raise
        raise DeviceFailed(_first_line(error)) from error


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
