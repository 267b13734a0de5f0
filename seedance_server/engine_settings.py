"""The part of the settings that is about the model and the engine; `config.py` has the rest, and checks all.

It must not know where a value came from.
"""

from __future__ import annotations

from typing import Any

from attrs import frozen

from seedance_server.setting import setting_field

__all__ = ["EngineSettings"]


def _model(default: Any, flag: str, metavar: str, help_text: str, **more: Any) -> Any:
    return setting_field(default, flag, metavar, help_text, group="model and engine", **more)


@frozen(kw_only=True, slots=False)
class EngineSettings:
    """What is served and how it is computed; the texts beside the fields are what ``--help`` prints."""

    model_path: str = _model("", "--model-path", "PATH", "model directory, hub id or GGUF file (required)")
    served_model_name: str | None = _model(
        None, "--served-model-name", "NAME", "name that clients may ask for (default: the model's own)"
    )
    dtype: str = _model(
        "auto",
        "--dtype",
        "TYPE",
        "number type of weights and KV cache",
        choices=("auto", "float32", "bfloat16", "float16"),
    )
    kernels: str = _model(
        "auto",
        "--kernels",
        "KIND",
        "what computes: PyTorch, or our own CPU kernels, which auto takes where they run",
        choices=("auto", "torch", "native"),
    )
    quantize: str = _model(
        "none",
        "--quantize",
        "KIND",
        "int8 keeps weights in 8 bits: half their memory, shorter steps for a few answers at once, longer "
        "ones for many, and tokens that are nearly the model's own; native kernels only",
        choices=("none", "int8"),
    )
    structured_output: str = _model(
        "lazy",
        "--structured-output",
        "WHEN",
        "when to read the vocabulary for json_schema and regex, which takes a second or two where it is "
        "large: eager at start, lazy at the first such request, which holds up others for much of that; "
        "off refuses them",
        choices=("lazy", "eager", "off"),
    )
    kv_memory_bytes: int | None = _model(
        None,
        "--kv-memory",
        "SIZE",
        "memory for the KV pool, e.g. 4GiB (default: from what is free)",
    )
    max_context_tokens: int | None = _model(
        None, "--max-context", "TOKENS", "longest prompt plus answer (default: the model's own)", parse=int
    )
    max_sequences: int = _model(128, "--max-sequences", "N", "generations decoded in one batch")
    prefill_budget_tokens: int = _model(
        256,
        "--prefill-budget",
        "TOKENS",
        "most prompt tokens per step: more fills the machine no better",
    )
    prefix_reuse: str = _model(
        "on",
        "--prefix-reuse",
        "SWITCH",
        "whether a prompt that begins like an earlier one of the same tenant is computed from there on",
        choices=("on", "off"),
    )
    session_kv_ttl_s: float = _model(
        300.0,
        "--session-kv-ttl",
        "SECONDS",
        "time for which a session's last turn keeps its KV memory longest",
    )
    itl_budget_ms: int | None = _model(
        None,
        "--itl-budget-ms",
        "MS",
        "longest a step with running answers should take; prompts beside them are cut to it "
        "(default: twice what the answers alone take, longer where many prompts wait for few answers)",
    )
    speculative_tokens: int = _model(
        15,
        "--speculative-tokens",
        "N",
        "most tokens that an answer which repeats itself runs ahead, 0 for none; the tokens are the same",
    )
    deterministic: str = _model(
        "auto",
        "--deterministic",
        "WHEN",
        "whether output must not depend on what else runs: on pads what PyTorch computes until it does not, "
        "and refuses to start where a test finds that it does; auto says so; off takes no trouble",
        choices=("auto", "on", "off"),
    )
    cuda_graphs: str = _model(
        "auto",
        "--cuda-graphs",
        "WHEN",
        "whether steps of answers alone are recorded once for each size and run as one: auto does on a GPU, "
        "on refuses to start where that can't be",
        choices=("auto", "on", "off"),
    )
    threads: int | None = _model(
        None, "--threads", "N", "CPU threads for the model (default: PyTorch's choice)", parse=int
    )
