"""The engine's settings, each with its unit and its reason; validated once, then frozen.

Pure Python: nothing here asks the machine. What depends on it (a default for the KV pool's size, the dtype
behind "auto") is decided where the memory and the model are known, from the values here.
"""

from typing import Any, Literal, TypeAlias

from attrs import Attribute, field, frozen
from attrs.validators import in_

__all__ = [
    "DETERMINISTIC",
    "DTYPES",
    "GRAPHS",
    "DeterministicName",
    "DtypeName",
    "EngineConfig",
    "FormsName",
    "GraphsName",
    "KernelsName",
    "QuantizeName",
    "ReuseName",
]

DtypeName: TypeAlias = Literal["auto", "float32", "bfloat16", "float16"]
DTYPES: tuple[DtypeName, ...] = ("auto", "float32", "bfloat16", "float16")
DeterministicName: TypeAlias = Literal["auto", "on", "off"]
DETERMINISTIC: tuple[DeterministicName, ...] = ("auto", "on", "off")
ReuseName: TypeAlias = Literal["on", "off"]
GraphsName: TypeAlias = Literal["auto", "on", "off"]
GRAPHS: tuple[GraphsName, ...] = ("auto", "on", "off")
KernelsName: TypeAlias = Literal["auto", "torch", "native"]
QuantizeName: TypeAlias = Literal["none", "int8"]
FormsName: TypeAlias = Literal["lazy", "eager", "off"]


def _positive(_owner: object, attribute: "Attribute[Any]", value: Any) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise ValueError(f"{attribute.name} must be a positive integer, not {value!r}")


def _not_negative(_owner: object, attribute: "Attribute[Any]", value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{attribute.name} must be a whole number from 0, not {value!r}")


@frozen(kw_only=True)
class EngineConfig:
    """Limits and sizes of one engine.

    Attributes:
        block_size: Tokens per KV block. 16, as vLLM: small enough that a sequence wastes 8 tokens on average,
            large enough that block tables stay short.
        kv_memory_bytes: Size of the KV pool in bytes. None: half of the memory that is available once the
            model is loaded, and never more than ``max_sequences`` full contexts could use.
        max_sequences: Most sequences in one step. Above 128 rows the reference machine gains no throughput.
        prefill_budget_tokens: Most prompt tokens in one step: bounds how long a joining prompt can hold up
            the decodes beside it. 256 is where throughput levels off on the reference machine.
        itl_budget_ms: Longest that a step with running answers should take, in milliseconds: chunks of
            prompts beside them are cut to it. None: twice what the answers alone take, whatever the machine,
            and longer where many prompts wait for few answers: see `prefill_budget.py`.
        prefix_reuse: Whether blocks that nobody holds are used again for prompts that begin alike. On: it
            costs a hash per block, some microseconds. Off is for measuring.
        session_kv_ttl_s: For so many seconds the blocks of a session's newest turn go after all others, when
            room is needed. 300: people read and write that long.
        max_context: Longest prompt plus answer in tokens. None: what the model allows.
        deterministic: "on" to take whatever trouble keeps output from depending on what else runs (see
            `padding.py`: it costs time on PyTorch's kernels, nothing on the native ones), and to refuse to
            serve where it was not enough; "auto" to pad a lonely row and say whether that was enough; "off"
            to take none.
        speculative_tokens: Longest draft that is run along with a sequence's last token, where the batch is
            small and the text repeats itself; 0 for none. 15 make a step of 16 rows, which costs one and a
            half of a single row with the native kernels; how many of them are worth it is measured.
        cuda_graphs: Whether steps of answers alone are recorded and queued as one, see `decode_graphs.py`.
            "on" to refuse to serve where they can't be (on a CPU they are run again, which tests it and gains
            nothing), "auto" to do so on a GPU, as far as it allows it, "off" for no recordings, whose memory
            is then free.
        threads: Torch's intra-op threads on the engine's thread. None: torch's own choice.

    Raises:
        ValueError: On construction, where a number isn't a positive integer or a name isn't known.
    """

    block_size: int = field(default=16, validator=_positive)
    kv_memory_bytes: int | None = field(default=None, validator=_positive)
    max_sequences: int = field(default=128, validator=_positive)
    prefill_budget_tokens: int = field(default=256, validator=_positive)
    itl_budget_ms: int | None = field(default=None, validator=_positive)
    prefix_reuse: ReuseName = field(default="on", validator=in_(("on", "off")))
    session_kv_ttl_s: int = field(default=300, validator=_positive)
    max_context: int | None = field(default=None, validator=_positive)
    deterministic: DeterministicName = field(default="auto", validator=in_(DETERMINISTIC))
    speculative_tokens: int = field(default=15, validator=_not_negative)
    cuda_graphs: GraphsName = field(default="auto", validator=in_(GRAPHS))
    threads: int | None = field(default=None, validator=_positive)
