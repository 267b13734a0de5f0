"""Reads a model's tokenizer as Transformers does, but its large file once.

Transformers parses ``tokenizer.json`` anew for each thing that it wants to know of it: for a vocabulary of
262,144 tokens that takes as long as building the tokenizer. So while it reads, it is lent a reader that
parses the file once. What comes out is what Transformers makes of it, whatever its class; a release that
reads in another way isn't affected. It knows nothing of models.
"""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from attrs import field, frozen
from huggingface_hub import try_to_load_from_cache
from transformers import AutoTokenizer

from seedance_server.engine.collector import paused_collector

__all__ = ["find_tokenizer_files", "read_tokenizer"]

_WHOLE = "tokenizer.json"
_BESIDE = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
_READERS = ("transformers.tokenization_utils_base", "transformers.tokenization_utils_tokenizers")
"""Modules of Transformers that parse it."""


def read_tokenizer(source: str, **options: Any) -> Any:
    """`AutoTokenizer.from_pretrained` with fewer detours; raises what that raises.

    Args:
        source: A directory, or a hub id.
        options: For `from_pretrained`.
    """
    # The collector would walk a million small objects that all stay. Not around the weights: what they leave
    # behind in cycles may be large.
    with paused_collector():
        with _parsed_once():
            tokenizer = AutoTokenizer.from_pretrained(source, **options)
        for name in ("_vocab", "_merges"):  # what some were made from: a copy in Python, twice their size
            if hasattr(tokenizer, name):
                setattr(tokenizer, name, None)
    return tokenizer


def find_tokenizer_files(source: str, tokenizer: Any) -> list[Path]:
    """The files that a tokenizer was made from.

    Args:
        source: Where it was read from: a directory, or a hub id.
        tokenizer: A Transformers tokenizer.

    Returns:
        In the order of their names; empty if it has no ``tokenizer.json``, and so was made from others.
    """
    found = []
    for name in sorted({_WHOLE, *_BESIDE, *type(tokenizer).vocab_files_names.values()}):
        path = Path(source) / name
        if not Path(source).is_dir():
            cached = try_to_load_from_cache(source, name)
            path = Path(cached) if isinstance(cached, str) else path
        if path.is_file():
            found.append(path)
    return found if _WHOLE in (path.name for path in found) else []


@frozen
class _ParsedOnce:
    """Stands in for the module `json`."""

    _trees: dict[str, Any] = field(factory=dict)

    def __getattr__(self, name: str) -> Any:
        return getattr(json, name)

    def load(self, file: IO[str], **options: Any) -> Any:
        name = str(getattr(file, "name", ""))
        if options or Path(name).name != _WHOLE:
            return json.load(file, **options)
        if name not in self._trees:
            self._trees[name] = json.loads(Path(name).read_bytes())  # which takes half the time of the text's
        tree = self._trees[name]
        if not isinstance(tree, dict) or not isinstance(tree.get("added_tokens"), list):
            return tree
        # This part is taken to pieces by who asks.
        return {**tree, "added_tokens": [dict(token) for token in tree["added_tokens"]]}


@contextmanager
def _parsed_once() -> Iterator[None]:
    readers = [vars(module) for module in map(sys.modules.get, _READERS) if module is not None]
    readers = [names for names in readers if names.get("json") is json]
    lent = _ParsedOnce()
    for names in readers:
        names["json"] = lent
    try:
        yield
    finally:
        for names in readers:
            names["json"] = json
