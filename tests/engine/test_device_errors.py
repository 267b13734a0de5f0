import pytest
import torch

from seedance_server.engine.device_errors import device_errors
from seedance_server.engine.errors import DeviceFailed, OutOfDeviceMemory


def test_device_errors_name_the_lack_of_memory():
    """A smaller step may do, so it must be told apart from all else; the message is a line."""
    with pytest.raises(OutOfDeviceMemory, match="2 GiB") as caught, device_errors():
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.\nmore")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("named", "message"),
    [
        # Drivers and libraries allocate on their own, and say so in other words than the allocator.
        (OutOfDeviceMemory, "CUDA error: out of memory\nCUDA kernel errors"),
        (OutOfDeviceMemory, "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        (OutOfDeviceMemory, "cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
        # After anything else nothing but a new process helps, whichever library of the device's speaks.
        (DeviceFailed, "CUDA error: an illegal memory access\nCUDA kernel errors"),
        (DeviceFailed, "cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
        (DeviceFailed, "cuDNN Frontend error: [cudnn_frontend] Error: No execution plans support the graph."),
    ],
)
def test_device_errors_tell_a_lack_of_memory_from_a_failed_device(named, message):
    """What is lacking may be there for half the rows; a device that failed is of no use any more."""
    with pytest.raises(named) as caught, device_errors():
        raise RuntimeError(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("error", [RuntimeError("shapes differ"), ValueError("CUDA error"), KeyError("x")])
def test_device_errors_leave_our_own_bugs_as_they_are(error):
    """A bug must not be taken for a broken device."""
    with pytest.raises(type(error)) as caught, device_errors():
        raise error
    assert caught.value is error
