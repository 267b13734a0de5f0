"""Everything the engine raises, as one tree whose first branching says who is at fault.

    EngineError
    ├── RequestError               the request: sent again unchanged, it fails again
    │   ├── InvalidParameter       a field is missing, out of range or contradicts another
    │   ├── TemplateError          the model's chat template refuses these messages
    │   ├── ContextLengthExceeded  the prompt is longer than the model's context
    │   ├── KvCapacityExceeded     the prompt fits the model, but never this server's KV pool
    │   └── ContinuationMismatch   what was generated before isn't this model's and engine's own
    ├── ModelLoadError             the operator: the server can't start like this
    │   ├── ModelNotFound          nothing is there
    │   ├── ModelFileError         something is there, but it can't be read
    │   ├── UnsupportedModel       it reads well, but isn't a model that this engine runs
    │   ├── InsufficientMemory     the weights or the KV pool don't fit
    │   ├── KvPoolTooSmall         the KV pool that was asked for holds no sequence
    │   ├── KernelsUnavailable     the kernels that were asked for don't run here
    │   ├── QuantizeUnavailable    nothing here multiplies weights of so few bits
    │   ├── GraphsUnavailable      steps can't be recorded, as was asked for
    │   └── NotDeterministic       output depends on company, and mustn't
    └── ComputeError               the model or the device, while it runs
        ├── NumericalError         the logits of one sequence aren't usable; its neighbours go on
        ├── CaptureFailed          a step can't be recorded; it can be run as ever
        ├── OutOfDeviceMemory      the device refused an allocation; a smaller step may do
        └── DeviceFailed           the device is of no use any more to this process

Each error holds its data as attributes and says in ``str()`` what to do, in words fit for whoever is at
fault: no paths of the server in a RequestError, no traceback text anywhere. They know nothing of wire codes.
"""
# ruff: noqa: N818 - these names are the words of the domain; "Error" is added only where the word needs it

from collections.abc import Callable
from math import ceil, floor

from attrs import define

__all__ = [
    "CaptureFailed",
    "ComputeError",
    "ContextLengthExceeded",
    "ContinuationMismatch",
    "DeviceFailed",
    "EngineError",
    "GraphsUnavailable",
    "InsufficientMemory",
    "InvalidParameter",
    "KernelsUnavailable",
    "KvCapacityExceeded",
    "KvPoolTooSmall",
    "ModelFileError",
    "ModelLoadError",
    "ModelNotFound",
    "NotDeterministic",
    "NumericalError",
    "OutOfDeviceMemory",
    "QuantizeUnavailable",
    "RequestError",
    "TemplateError",
    "UnsupportedModel",
]


def _size(size_bytes: int, to_whole: Callable[[float], int]) -> str:
    """A size in the unit that leaves one to four digits before the point."""
    size, unit = float(size_bytes), "B"
    for larger in ("KiB", "MiB", "GiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    if size < 10 and unit != "B":
        return f"{to_whole(10 * size) / 10:,.1f} {unit}"
    return f"{to_whole(size):,} {unit}"


def _at_least(size_bytes: int) -> str:
    """What is needed, rounded up: whoever provides what the message says has enough."""
    return _size(size_bytes, ceil)


def _at_most(size_bytes: int) -> str:
    """What there is, rounded down: it never looks as much as what is needed."""
    return _size(size_bytes, floor)


class EngineError(Exception):
    """Base of everything the engine raises on purpose."""


class RequestError(EngineError):
    """The request is at fault: sent again unchanged, it fails again."""


@define
class InvalidParameter(RequestError):
    """One field of a request can't be used.

    Attributes:
        field: The field's name as the client sent it, e.g. ``top_p`` or ``messages``.
        reason: What is wrong and what would be right, e.g. "must be above 0 and at most 1, not 7".
    """

    field: str
    reason: str

    def __str__(self) -> str:
        return f"{self.field} {self.reason}"


@define
class TemplateError(RequestError):
    """The model's chat template refuses these messages.

    Attributes:
        reason: The template's own message, one line.
    """

    reason: str

    def __str__(self) -> str:
        return f"the model's chat template refuses these messages: {self.reason}"


@define
class ContextLengthExceeded(RequestError):
    """The prompt leaves no room for even one new token.

    Attributes:
        prompt_tokens: Length of the prompt in tokens, or a number that it surely reaches.
        limit: The longest prompt accepted, in tokens.
        exact: False where ``prompt_tokens`` is a lower bound, since the text was too long to be tokenised.
    """

    prompt_tokens: int
    limit: int
    exact: bool = True

    def __str__(self) -> str:
        count = f"{self.prompt_tokens}" if self.exact else f"at least {self.prompt_tokens}"
        return f"the prompt has {count} tokens, at most {self.limit} fit: shorten it"


@define
class KvCapacityExceeded(RequestError):
    """The prompt fits the model, but no amount of waiting makes it fit this server's KV pool.

    Attributes:
        needed_blocks: Blocks that the request needs at least.
        total_blocks: Blocks in the whole pool.
    """

    needed_blocks: int
    total_blocks: int

    def __str__(self) -> str:
        return (
            f"the request needs {self.needed_blocks} KV blocks, this server has {self.total_blocks} in all: "
            "shorten the prompt"
        )


@define
class ContinuationMismatch(RequestError):
    """An answer can't be taken up: its beginning isn't what this model and engine make of these ids.

    Attributes:
        reason: Where they differ.
    """

    reason: str

    def __str__(self) -> str:
        return f"the answer can't be continued here, its beginning is another model's: {self.reason}"


class ModelLoadError(EngineError):
    """The operator's model path or settings are at fault: the server can't start with them."""


@define
class ModelNotFound(ModelLoadError):
    """There is no model at the path.

    Attributes:
        path: The path or hub id as given.
        reason: Where was looked and what to do.
    """

    path: str
    reason: str

    def __str__(self) -> str:
        return f"no model at {self.path}: {self.reason}"


@define
class ModelFileError(ModelLoadError):
    """The model's files are incomplete or can't be read.

    Attributes:
        path: The file or directory.
        reason: What is wrong with it.
    """

    path: str
    reason: str

    def __str__(self) -> str:
        return f"can't read the model at {self.path}: {self.reason}"


@define
class UnsupportedModel(ModelLoadError):
    """The files are sound, but hold a model that this engine doesn't run.

    Attributes:
        path: The model's path.
        reason: What isn't supported.
    """

    path: str
    reason: str

    def __str__(self) -> str:
        return f"the model at {self.path} isn't supported: {self.reason}"


@define
class InsufficientMemory(ModelLoadError):
    """The weights or the KV pool don't fit into memory.

    Attributes:
        needed_bytes: What they need.
        available_bytes: What there is; None where the device refused without saying.
    """

    needed_bytes: int
    available_bytes: int | None

    def __str__(self) -> str:
        there = "more than there is"
        if self.available_bytes is not None:
            there = f"{_at_most(self.available_bytes)} available"
        needed = f"{_at_least(self.needed_bytes)} of memory needed"
        return f"{needed}, {there}: choose a smaller model, context or KV pool"


@define
class KvPoolTooSmall(ModelLoadError):
    """The KV pool's size was given, and it is too small to hold even a short sequence.

    Attributes:
        needed_bytes: The least that makes sense.
        given_bytes: What was given.
    """

    needed_bytes: int
    given_bytes: int

    def __str__(self) -> str:
        given = f"--kv-memory gives {_at_most(self.given_bytes)}"
        return f"the KV pool needs {_at_least(self.needed_bytes)} at least, {given}"


@define
class KernelsUnavailable(ModelLoadError):
    """The native kernels were asked for by name, and they can't compute this model on this machine.

    Attributes:
        reason: Why not, in a few words.
    """

    reason: str

    def __str__(self) -> str:
        return f"the native kernels can't be used: {self.reason} (--kernels)"


@define
class QuantizeUnavailable(ModelLoadError):
    """Weights of fewer bits were asked for, and what computes this model on this machine can't multiply them.

    Attributes:
        wanted: What was asked for.
        reason: Why not, in a few words.
    """

    wanted: str
    reason: str

    def __str__(self) -> str:
        return (
            f"--quantize {self.wanted} needs the native kernels, which can't be used: {self.reason}; "
            "--quantize none serves the model as it is"
        )


@define
class GraphsUnavailable(ModelLoadError):
    """Recorded steps were asked for by name, and there can't be any here.

    Attributes:
        reason: Why not, in a few words.
    """

    reason: str

    def __str__(self) -> str:
        return f"steps can't be recorded as graphs: {self.reason} (--cuda-graphs)"


@define
class NotDeterministic(ModelLoadError):
    """Output depends on what else runs, on this machine, and the operator wants it not to.

    Attributes:
        reason: What changed the logits.
    """

    reason: str

    def __str__(self) -> str:
        return (
            f"output depends on what else runs here: logits change when {self.reason} "
            "(--deterministic auto serves nevertheless)"
        )


class ComputeError(EngineError):
    """The model or the device failed while it ran; the request itself may be sound."""


@define
class NumericalError(ComputeError):
    """The logits of one sequence can't be sampled from.

    Attributes:
        reason: What they held.
    """

    reason: str

    def __str__(self) -> str:
        return f"the model gave no usable probabilities for this sequence: {self.reason}"


@define
class CaptureFailed(ComputeError):
    """The device doesn't let a step be recorded; run as ever, it works.

    Attributes:
        reason: The device's own message, one line.
    """

    reason: str

    def __str__(self) -> str:
        return f"the step can't be recorded: {self.reason}"


@define
class OutOfDeviceMemory(ComputeError):
    """The device refused an allocation.

    Attributes:
        reason: The device's own message, one line.
    """

    reason: str

    def __str__(self) -> str:
        return f"the device is out of memory: {self.reason}"


@define
class DeviceFailed(ComputeError):
    """Whatever the device is asked from now on, it answers with this error: only a new process helps.

    Attributes:
        reason: The device's own message, one line.
    """

    reason: str

    def __str__(self) -> str:
        return f"the device has failed, start the server again: {self.reason}"
