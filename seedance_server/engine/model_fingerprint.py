"""Tells whether two servers would continue an answer alike: one hash over all that its tokens follow from.

Weights, config, tokenizer, dtype, kind of device, the libraries that compute, and our own rules of sampling.
The invariant: equal fingerprints mean equal tokens for equal ids, parameters and seed, as far as the hardware
rounds alike; a difference in any of these changes the fingerprint. Where the files lie has no part in it, nor
how those of the weights are cut up and called, nor the chat template: what it made is kept as token ids. A
tokenizer's files go in as they are written (parsing them takes longer): one that was saved anew, in other
bytes, counts as another.

It tells models apart and is no proof against forgery: weights go in by the sums of their bits.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from itertools import accumulate
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch
import transformers

from seedance_server.engine.progress import Progress, silent

__all__ = ["SAMPLING_REVISION", "digest_tokenizer", "digest_weights", "fingerprint_model"]

SAMPLING_REVISION = 1
"""To be raised with every change to which token follows from logits, seed and position, or to where an answer
ends: interrupted answers must not go on by rules other than those they began with."""

_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_TEMPLATED = "tokenizer_config.json"
_PRIVATE = ("_name_or_path", "transformers_version")  # where a config came from, and who wrote it


@torch.inference_mode()
def digest_weights(model: Any, progress: Progress = silent) -> bytes:
    """Hash a model's weights.

    Reads each of them once, at the speed of the memory (seconds per 10 GB on one CPU core).

    Args:
        model: A Transformers model in its final dtype and place.
        progress: Told how far it is.

    Returns:
        SHA-256, 32 bytes.
    """
    digest = hashlib.sha256(model.device.type.encode())
    tensors = sorted((*model.named_parameters(), *model.named_buffers()), key=itemgetter(0))
    done = list(accumulate((tensor.nbytes for _, tensor in tensors), initial=0))
    for (name, tensor), before in zip(tensors, done, strict=False):
        progress("reading its weights for its fingerprint", before / max(1, done[-1]))
        digest.update(f"\n{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
        digest.update(_bit_sums(tensor))
    return digest.digest()


def digest_tokenizer(tokenizer: Any, files: Sequence[Path] = ()) -> bytes:
    """Hash a tokenizer, whole.

    Args:
        tokenizer: A "fast" one.
        files: What it was made from, where that is known (see `find_tokenizer_files`): reading them takes a
            tenth of the time that writing the tokenizer out does.

    Returns:
        SHA-256, 32 bytes.
    """
    if not files:
        return hashlib.sha256(tokenizer.backend_tokenizer.to_str().encode()).digest()
    digest = hashlib.sha256(type(tokenizer).__name__.encode())
    for file in files:
        content = _without_template(file.read_bytes()) if file.name == _TEMPLATED else file.read_bytes()
        digest.update(f"\n{file.name} {len(content)}\n".encode())
        digest.update(content)
    return digest.digest()


def _without_template(tokenizer_config: bytes) -> bytes:
    config = json.loads(tokenizer_config)
    config.pop("chat_template", None)
    return json.dumps(config, sort_keys=True).encode()


def fingerprint_model(
    model_config: Any, weights: bytes, tokenizer: bytes, eos_token_ids: Iterable[int], backend: str
) -> bytes:
    """Hash what a loaded model's tokens follow from.

    Args:
        model_config: The Transformers model's own.
        weights: From `digest_weights`.
        tokenizer: From `digest_tokenizer`.
        eos_token_ids: Tokens that end an answer.
        backend: Name of what computes it: another one may round otherwise.

    Returns:
        SHA-256, 32 bytes.
    """
    config = {name: value for name, value in model_config.to_dict().items() if name not in _PRIVATE}
    facts = {
        "sampling": SAMPLING_REVISION,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "weights": weights.hex(),
        "backend": backend,
        "config": config,
        "eos": sorted(eos_token_ids),
        "tokenizer": tokenizer.hex(),
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).digest()


def _bit_sums(tensor: torch.Tensor) -> bytes:
    """Wrapping sums of a tensor's words by row and by column; a change of one word or of the order shows."""
    matrix = tensor.flatten(0, -2) if tensor.ndim > 1 else tensor.reshape(1, -1)
    size = matrix.element_size()
    word = _WORDS[size]
    if matrix.numel() and matrix.shape[1] * size % 8 == 0:  # several numbers at once, which is faster
        word = torch.int64
        if not matrix.is_contiguous() or matrix.storage_offset() * size % 8:
            matrix = matrix.clone(memory_format=torch.contiguous_format)
    words = matrix.view(word)
    sums = (words.sum(dimension, dtype=words.dtype) for dimension in (0, 1))
    return b"".join(each.cpu().numpy().tobytes() for each in sums)
