"""Turns one sequence's token ids into text, piece by piece, without ever showing a broken character.

The invariant: the pieces joined are `tokenizer.decode(all ids, skip_special_tokens=True)`, whatever the
tokenizer (byte-level BPE, SentencePiece with byte fallback, Unigram, WordPiece). Text is decoded in a
window that starts with a token already shown, so a piece keeps the spaces that decoding a token alone would
lose, and a token costs the same at the start of an answer as at its end. Two things may still change and
are held back:

* the last U+FFFD of a byte-level text, for it may be a character that is not complete yet. Whatever stands
  before it is settled, so an invalid byte is shown one token later and holds nothing else.
* a run of byte-fallback tokens. Their decoder judges a run as a whole: a single bad byte turns *each* byte
  of the run into U+FFFD. The run is settled by its first bad byte, the token that ends it, or its length.

It knows nothing of stop strings or of why a sequence ends.
"""

import codecs
import re
from collections.abc import Iterable

from transformers import PreTrainedTokenizerFast

__all__ = ["MAX_HELD_BYTES", "Detokenizer"]

MAX_HELD_BYTES = 64
"""Longest run of byte-fallback tokens that is held back. Sixteen emoji: a longer run is let go at each whole
character, so that a stream does not stall. Only if such a run turns bad later do the pieces differ from the
one-shot decode, which would take back characters that were shown."""

_REPLACEMENT = "\ufffd"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")
_WINDOW_TOKENS = 8
_RESYNC_TOKENS = 4  # at least 4 bytes: a decoder that starts inside a character is right after 3


class Detokenizer:
    """Incremental decoder of one sequence. Not thread-safe; many may share a tokenizer.

    Args:
        tokenizer: Any "fast" tokenizer. It is only read.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self._tokenizer = tokenizer.backend_tokenizer
        self._window: list[int] = []
        self._shown = 0  # characters of the decoded window that were returned
        probe = self._tokenizer.token_to_id("<0x41>")
        self._byte_fallback = probe is not None and self._decode([probe]) == "A"
        self._run: list[int] = []  # byte-fallback tokens held back: valid UTF-8 as far as it goes
        self._run_is_bad = False  # the run so far is known to decode to one U+FFFD for each byte
        self._utf8 = codecs.getincrementaldecoder("utf-8")()

    def append(self, token_ids: Iterable[int]) -> str:
        """Takes the next ids of the sequence.

        Args:
            token_ids: Ids in the order in which they were generated; special tokens and ids without a
                token are skipped.

        Returns:
            The text that they settle; empty if all of it may still change.
        """
        return "".join(map(self._append, token_ids))

    def flush(self) -> str:
        """Ends the sequence and returns what was held back.

        A byte-level tail that is no whole character becomes one U+FFFD, a byte-fallback tail one for each of
        its bytes, as in the tokenizer's own decode.
        """
        bad_run = self._end_run()
        rest = self._decode(self._window)[self._shown :]
        self._window, self._shown = [], 0
        return bad_run + rest

    def _append(self, token_id: int) -> str:
        if not self._decode([token_id, token_id]):  # twice, because a decoder may strip a leading space
            return ""
        if self._byte_fallback and (match := _BYTE_TOKEN.fullmatch(self._tokenizer.id_to_token(token_id))):
            return self._append_byte(token_id, bytes.fromhex(match[1]))
        bad_run = self._end_run()
        self._window.append(token_id)
        return bad_run + self._settle()

    def _append_byte(self, token_id: int, byte: bytes) -> str:
        if self._run_is_bad:
            self._show(token_id)
            return _REPLACEMENT
        self._run.append(token_id)
        try:
            completed = self._utf8.decode(byte)
        except UnicodeDecodeError:
            self._run_is_bad = True
            return self._show_bad_run()
        return self._show_long_run(completed) if completed and len(self._run) >= MAX_HELD_BYTES else ""

    def _end_run(self) -> str:
        """Settles the run of byte tokens, if any: a sound one joins the window, a bad one is returned."""
        self._run_is_bad = False
        pending, _ = self._utf8.getstate()
        if pending:
            return self._show_bad_run()
        self._window += self._run
        self._run = []
        return ""

    def _show_long_run(self, last_char: str) -> str:
        text = self._decode(self._window + self._run)[self._shown :]
        self._show(*self._run[-len(last_char.encode()) :])  # a whole character: it can't spoil what follows
        self._run = []
        return text

    def _show_bad_run(self) -> str:
        text = _REPLACEMENT * len(self._run)
        self._show(self._run[-1])
        self._run = []
        self._utf8.reset()
        return text

    def _settle(self) -> str:
        """Decodes the window and returns what is new in it and can't change any more."""
        text = self._decode(self._window)
        held = not self._byte_fallback and text.endswith(_REPLACEMENT)
        end = len(text) - held
        piece, self._shown = text[self._shown : end], end
        if not held:
            self._show(self._window[-1])
        elif len(self._window) > _WINDOW_TOKENS:
            self._window = self._window[-_RESYNC_TOKENS:]
            self._shown = len(self._decode(self._window)) - held
        return piece

    def _show(self, *token_ids: int) -> None:
        """Starts a new window behind tokens whose text was returned."""
        self._window = list(token_ids)
        self._shown = len(self._decode(self._window))

    def _decode(self, token_ids: list[int]) -> str:
        text: str = self._tokenizer.decode(token_ids, skip_special_tokens=True)
        return text
