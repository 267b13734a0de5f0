"""The kernels' library, for tests that run only where it does."""

import ctypes

import pytest

from seedance_server.engine.kernels.library import KernelsMissing, open_library
from seedance_server.engine.kernels.weight_memory import WeightMemory


@pytest.fixture(scope="session")
def library() -> ctypes.CDLL:
    """The opened library; without a compiler or on another processor the test is skipped, with the reason."""
    try:
        return open_library()
    except KernelsMissing as missing:
        pytest.skip(str(missing))


@pytest.fixture
def memory(library: ctypes.CDLL) -> WeightMemory:
    """Room for packed weights."""
    return WeightMemory(library)
