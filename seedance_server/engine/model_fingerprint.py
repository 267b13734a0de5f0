"""Tells whether two servers would continue an answer alike: one hash over all that its tokens follow from.

Weights, config, tokenizer, dtype, kind of device, the libraries that compute, and our own rules of sampling.
The invariant: equal fingerprints mean equal tokens for equal ids, parameters and seed, as far as the hardware
rounds alike; a difference in any of these changes the fingerprint. Where the files lie, how they are cut up
and what they are called has no part in it, nor has the chat template: what it made is kept as token ids.

It tells models apart and is no proof against forgery: weights go in by the sums of their bits.
"""

import hashlib
import json
from collections.abc import Iterable
from itertools import accumulate
from operator import itemgetter
from typing import Any

import torch
import transformers

from seedance_server.engine.progress import Progress, silent

__all__ = ["SAMPLING_REVISION", "fingerprint_model"]

SAMPLING_REVISION = 1
"""To be raised with every change to which token follows from logits, seed and position, or to where an answer
ends: interrupted answers must not go on by rules other than those they began with."""

_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_PRIVATE = ("_name_or_path", "transformers_version")  # where a config came from, and who wrote it


def fingerprint_model(
    model: Any,
    tokenizer: Any,
    eos_token_ids: Iterable[int],
    backend: str,
    progress: Progress = silent,
) -> bytes:
    """Hash what a loaded model's tokens follow from.

    Reads every weight once, at the speed of the memory (seconds per 10 GB on one CPU core).

    Args:
        model: A Transformers model in its final dtype and place.
        tokenizer: Its "fast" tokenizer.
        eos_token_ids: Tokens that end an answer.
        backend: Name of what computes it: another one may round otherwise.
        progress: Told how far it is.

    Returns:
        SHA-256, 32 bytes.
    """
    config = {name: value for name, value in model.config.to_dict().items() if name not in _PRIVATE}
    facts = {
        "sampling": SAMPLING_REVISION,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "device": model.device.type,
        "backend": backend,
        "config": config,
        "eos": sorted(eos_token_ids),
        "tokenizer": hashlib.sha256(tokenizer.backend_tokenizer.to_str().encode()).hexdigest(),
    }
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode())
    tensors = sorted((*model.named_parameters(), *model.named_buffers()), key=itemgetter(0))
    done = list(accumulate((tensor.nbytes for _, tensor in tensors), initial=0))
    for (name, tensor), before in zip(tensors, done, strict=False):
        progress("reading its weights for its fingerprint", before / done[-1])
        digest.update(f"\n{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
        digest.update(_bit_sums(tensor))
    return digest.digest()


@torch.inference_mode()
def _bit_sums(tensor: torch.Tensor) -> bytes:
    """Wrapping sums of a tensor's words by row and by column; a change of one word or of the order shows."""
    words = tensor.view(_WORDS[tensor.element_size()])
    matrix = words.flatten(0, -2) if tensor.ndim > 1 else words.reshape(1, -1)
    sums = (matrix.sum(dimension, dtype=words.dtype) for dimension in (0, 1))
    return b"".join(each.cpu().numpy().tobytes() for each in sums)
