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
    "message",
    [
        "CUDA error: out of memory\nCUDA kernel errors",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
    ],
)
def test_device_errors_name_a_lack_of_memory_that_isn_t_the_allocator_s(message):
    """Drivers and libraries allocate on their own, and say so in other words."""
    with pytest.raises(OutOfDeviceMemory) as caught, device_errors():
        raise RuntimeError(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "message",
    [
        "CUDA error: an illegal memory access\nCUDA kernel errors",
        "cuDNN error: CUDNN_STATUS_EXECUTION_FAILED",
        "cuDNN Frontend error: [cudnn_frontend] Error: No execution plans support the graph.",
    ],
)
def test_device_errors_call_a_device_failed_when_it_says_anything_else(message):
    """Nothing but a new process helps, whichever library of the device's speaks."""
    with pytest.raises(DeviceFailed) as caught, device_errors():
        raise RuntimeError(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("error", [RuntimeError("shapes differ"), ValueError("CUDA error"), KeyError("x")])
def test_device_errors_leave_our_own_bugs_as_they_are(error):
    """A bug must not be taken for a broken device."""
    with pytest.raises(type(error)) as caught, device_errors():
        raise error
    assert caught.value is error
