"""The bytes that each token of a vocabulary stands for, read from a tokenizer without writing it out whole.

Two kinds are known: byte-level (each character of a token is a byte) and byte-fallback (text with a mark for
the space, and a token for each byte). Any other is left to whoever can read it. What it says is what
llguidance's own reader says, which parses the tokenizer's JSON for seconds without letting other Python run;
tests compare the two. Here nothing takes long in one piece.

It must not know grammars, nor what the bytes are for.
"""

from __future__ import annotations

import json
from typing import Any

from attrs import frozen

__all__ = ["TokenBytes", "read_token_bytes"]

_OWN_CHARACTERS = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
"""Bytes that a byte-level vocabulary shows as the character of their number; others follow from 256 on."""


@frozen
class TokenBytes:
    """A vocabulary.

    Attributes:
        tokens: Of each id; empty where there is no token.
        special_ids: Those that are marks, and never text.
    """

    tokens: tuple[bytes, ...]
    special_ids: tuple[int, ...]


def read_token_bytes(tokenizer: Any, vocab_size: int) -> TokenBytes | None:
    """Reads the vocabulary of a fast Transformers tokenizer; None for a kind that isn't known.

    Args:
        tokenizer: The tokenizer.
        vocab_size: Width of a row of logits. Tokens beyond it, which no answer can hold, are left out.
    """
    backend = tokenizer.backend_tokenizer
    steps = _steps(backend.decoder)
    kinds = [step["type"] for step in steps]
    if any(step["type"] == "Prepend" for step in _steps(backend.normalizer)):
        return None  # encodes the middle of a text as if it were the beginning
    byte_of = _byte_of() if kinds == ["ByteLevel"] else None
    if byte_of is None and "ByteFallback" not in kinds:
        return None
    replaced = [step["pattern"] for step in steps if step["type"] == "Replace" and step["content"] == " "]
    space = next((pattern["String"] for pattern in replaced if pattern.get("String")), " ")
    added = backend.get_added_tokens_decoder()
    tokens, special_ids = [b""] * vocab_size, []
    for token, id_ in backend.get_vocab(with_added_tokens=True).items():
        if id_ >= vocab_size:
            continue
        if id_ in added:
            tokens[id_] = token.encode()
            if added[id_].special or (token.startswith("<") and token.endswith(">")):
                special_ids.append(id_)
        elif byte_of is not None:
            if not byte_of.keys() >= set(token):
                return None
            tokens[id_] = bytes(map(byte_of.__getitem__, token))
        elif len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            tokens[id_] = bytes.fromhex(token[3:5])
        else:
            tokens[id_] = token.replace(space, " ").encode()
    return TokenBytes(tuple(tokens), tuple(sorted(special_ids)))


def _steps(part: Any) -> list[dict[str, Any]]:
    """What a decoder or normalizer does, one after the other."""
    if part is None:
        return []
    state = json.loads(part.__getstate__())
    steps: list[dict[str, Any]] = state.get("decoders") or state.get("normalizers") or [state]
    return steps


def _byte_of() -> dict[str, int]:
    shown = {chr(number): number for number in _OWN_CHARACTERS}
    others = (number for number in range(256) if number not in _OWN_CHARACTERS)
    return shown | {chr(256 + place): number for place, number in enumerate(others)}
