"""The engine's error tree."""

import copy
import pickle

import pytest

from seedance_server.engine import errors
from seedance_server.engine.errors import (
    CaptureFailed,
    ComputeError,
    ContextLengthExceeded,
    ContinuationMismatch,
    DeviceFailed,
    EngineError,
    GraphsUnavailable,
    InsufficientMemory,
    InvalidParameter,
    KernelsUnavailable,
    KvCapacityExceeded,
    KvPoolTooSmall,
    ModelFileError,
    ModelLoadError,
    ModelNotFound,
    NotDeterministic,
    NumericalError,
    OutOfDeviceMemory,
    QuantizeUnavailable,
    RequestError,
    TemplateError,
    UnsupportedModel,
)

EXAMPLES = {
    InvalidParameter("top_p", "must be above 0"): RequestError,
    TemplateError("no system role"): RequestError,
    ContextLengthExceeded(9, 8): RequestError,
    KvCapacityExceeded(65, 64): RequestError,
    ContinuationMismatch("its tokens give another text"): RequestError,
    ModelNotFound("/m", "no such directory"): ModelLoadError,
    ModelFileError("/m", "config.json is no JSON"): ModelLoadError,
    UnsupportedModel("/m", "an encoder"): ModelLoadError,
    InsufficientMemory(2**31, 2**30): ModelLoadError,
    KvPoolTooSmall(4096, 1): ModelLoadError,
    KernelsUnavailable("no compiler"): ModelLoadError,
    QuantizeUnavailable("int8", "no compiler"): ModelLoadError,
    GraphsUnavailable("the model waits for the device"): ModelLoadError,
    NotDeterministic("a prompt is cut"): ModelLoadError,
    NumericalError("NaN"): ComputeError,
    CaptureFailed("operation not permitted when stream is capturing"): ComputeError,
    OutOfDeviceMemory("tried to allocate"): ComputeError,
    DeviceFailed("an illegal memory access was encountered"): ComputeError,
}


@pytest.mark.parametrize(("error", "branch"), EXAMPLES.items(), ids=lambda value: type(value).__name__)
def test_error_is_on_the_branch_of_who_is_at_fault(error, branch):
    """A caller can tell the request's fault from the operator's and the machine's by one except clause."""
    assert isinstance(error, branch)
    assert isinstance(error, EngineError)


def test_tree_has_an_example_of_each_leaf():
    """No error type is added without a place in these tests."""
    branches = {"EngineError", "RequestError", "ModelLoadError", "ComputeError"}
    assert {type(error).__name__ for error in EXAMPLES} == set(errors.__all__) - branches


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_error_crosses_a_process_boundary_when_pickled(error):
    """The engine may live in another process: errors arrive with their data."""
    twin = pickle.loads(pickle.dumps(error))
    assert type(twin) is type(error)
    assert str(twin) == str(error)
    assert copy.copy(error).args == error.args


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_message_is_one_line_when_shown(error):
    """A message fits a log line and a REFUSED."""
    assert str(error)
    assert "\n" not in str(error)


def test_context_error_names_both_numbers():
    """The client sees how long its prompt is and how long it may be, and if the first number is a guess."""
    assert str(ContextLengthExceeded(900, 512)) == "the prompt has 900 tokens, at most 512 fit: shorten it"
    assert "at least 900 tokens" in str(ContextLengthExceeded(900, 512, exact=False))


def test_capacity_error_names_both_numbers():
    """A request that can never fit says by how much."""
    assert "65 KV blocks" in str(KvCapacityExceeded(65, 64))
    assert "64 in all" in str(KvCapacityExceeded(65, 64))


def test_memory_errors_speak_in_units_that_show_both_numbers():
    """An operator reads sizes, not byte counts, and never "0 MiB" for what is there."""
    assert "2.0 GiB of memory needed, 512 MiB available" in str(InsufficientMemory(2**31, 2**29))
    assert "more than there is" in str(InsufficientMemory(2**31, None))
    assert str(KvPoolTooSmall(4096, 1)) == "the KV pool needs 4.0 KiB at least, --kv-memory gives 1 B"


@pytest.mark.parametrize(
    ("needed", "there", "message"),
    [
        (2**31 + 1, 2**31 - 1, "2.1 GiB of memory needed, 1.9 GiB available"),
        (1500 * 2**20 + 1, 1500 * 2**20 - 1, "1.5 GiB of memory needed, 1.4 GiB available"),
        (100 * 2**20 + 1, 100 * 2**20 - 1, "101 MiB of memory needed, 99 MiB available"),
        (1001, 999, "1,001 B of memory needed, 999 B available"),
    ],
)
def test_memory_error_rounds_so_that_what_it_asks_for_is_enough(needed, there, message):
    """Never "2.0 GiB needed, 2.0 GiB available"."""
    assert message in str(InsufficientMemory(needed, there))
