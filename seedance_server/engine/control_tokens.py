"""Encodes text in which only some control tokens are meant: those that the chat template wrote itself.

The rule: a control token's text (`<|im_end|>`, `</s>` …) that comes from a client is encoded as the
ordinary text that it is. Client text is *marked* before it enters the template: each control text in it
stands between two private markers, which survive what templates do to a content (trim, split, compare). In
the rendered prompt the control texts without markers are the template's. They are exchanged for aliases
that nobody can guess, the markers go, and a twin tokenizer encodes the whole at once, to which the aliases
are the only control tokens. Encoding it in one go keeps each merge and space as the model knows them:
without control texts from a client the ids are exactly those of `apply_chat_template`.

A control token is one that the tokenizer flags as special, or an added token that the template itself
writes.
"""

from collections.abc import Iterable, Mapping

from tokenizers import AddedToken, Tokenizer
from tokenizers.models import WordLevel

__all__ = ["AmbiguousTextError", "ControlTokens", "find_control_texts", "twin_tokenizer"]


_UNKNOWN_CHARACTER = "\U0010fffd"  # private use: in no vocabulary but as bytes


class AmbiguousTextError(ValueError):
    """The tokenizer's own vocabulary turns some ordinary text into a control token."""


def find_control_texts(tokenizer: Tokenizer, template: str) -> frozenset[str]:
    """The texts of the tokens that a client must not be able to write.

    Args:
        tokenizer: The model's tokenizer.
        template: Source of its chat template. White-space tokens in it (Gemma's newlines) are ordinary text.

    Returns:
        Texts of added tokens. Where characters that the vocabulary lacks become an "unknown" token, that one
        isn't among them: any such character writes it.
    """
    unknown = tokenizer.encode(_UNKNOWN_CHARACTER, add_special_tokens=False).ids
    return frozenset(
        token.content
        for token_id, token in tokenizer.get_added_tokens_decoder().items()
        if token.special or (token.content in template and not token.content.isspace())
        if token_id not in unknown
    )


def twin_tokenizer(
    tokenizer: Tokenizer, renamed: Mapping[str, str], more: Iterable[str] = (), *, below: int | None = None
) -> tuple[Tokenizer, dict[int, int]]:
    """A tokenizer over the same model (shared, not copied) that knows some added tokens under other texts.

    It neither truncates nor pads nor adds special tokens, and nobody changes it: threads may share it.

    Args:
        tokenizer: The original; only read.
        renamed: New texts of some of its added tokens, by their old ones.
        more: Texts of added tokens that only the twin has.
        below: Leave out added tokens from this id on; None to keep all.

    Returns:
        The twin, and the original's id for each id that the twin numbers otherwise.
    """
    added = sorted(tokenizer.get_added_tokens_decoder().items())
    added = [(number, token) for number, token in added if below is None or number < below]
    twin = Tokenizer(tokenizer.model)
    twin.normalizer = tokenizer.normalizer
    twin.pre_tokenizer = tokenizer.pre_tokenizer
    texts = [renamed.get(token.content, token.content) for _, token in added]
    copies = [
        AddedToken(
            text,
            single_word=token.single_word and text == token.content,
            lstrip=token.lstrip,
            rstrip=token.rstrip,
            normalized=token.normalized and text == token.content,
            special=False,
        )
        for text, (_, token) in zip(texts, added, strict=True)
    ]
    twin.add_tokens(
        [*copies, *(AddedToken(text, normalized=False) for text in more)]
    )  # each call builds anew
    numbers = zip(map(twin.token_to_id, texts), (number for number, _ in added), strict=True)
    return twin, {ours: theirs for ours, theirs in numbers if ours is not None and ours != theirs}


class ControlTokens:
    """Marks client text and encodes what a template made of it. Immutable: threads may share it.

    Args:
        tokenizer: The model's tokenizer; only read.
        texts: Texts of the tokens that only a template may write, each the text of an added token.
        nonce: Random digits that no client can guess; they tell our markers from a client's text.
    """

    def __init__(self, tokenizer: Tokenizer, texts: Iterable[str], nonce: str) -> None:
        # The digits come first: what thousands of aliases begin with is looked up, and built, once.
        self._start, self._end, self._break = (f"\ue000{nonce}:{kind}\ue001" for kind in range(3))
        self._aliases = {text: f"\ue000{nonce}:{index}\ue001" for index, text in enumerate(sorted(texts), 3)}
        self._twin, self._ids = twin_tokenizer(tokenizer, self._aliases, [self._break])
        self._control_ids = frozenset(tokenizer.token_to_id(text) for text in self._aliases)
        self._break_id = self._twin.token_to_id(self._break)
        # Finds all control texts in one pass, however many there are (Gemma has thousands).
        self._scanner = Tokenizer(WordLevel({"": 0}, unk_token=""))
        self._scanner.add_tokens([AddedToken(text, normalized=False) for text in self._aliases])
        self._prefixes = {text[:length] for text in self._aliases for length in range(1, len(text))}
        self._suffixes = {text[length:] for text in self._aliases for length in range(1, len(text))}
        self._longest = max(map(len, self._aliases), default=0)

    def mark(self, text: str) -> str:
        """Puts markers around the control texts in a client's text, and at an end that could become one.

        Args:
            text: What the client sent.

        Returns:
            The text to give to the template.
        """
        parts: list[str] = []
        done = 0
        for start, end in self._spans(text):
            parts += text[done:start], self._start, text[start:end], self._end
            done = end
        parts.append(text[done:])
        # Half a control text: the other half may follow from the next message.
        if any(text[:length] in self._suffixes for length in range(1, self._longest)):
            parts.insert(0, self._end)
        if any(text[-length:] in self._prefixes for length in range(1, self._longest)):
            parts.append(self._end)
        return "".join(parts)

    def unmark(self, text: str) -> str:
        """Takes all markers out again."""
        return text.replace(self._start, "").replace(self._end, "")

    def encode(self, rendered: str) -> list[int]:
        """Encodes a template's output: what is marked as text, other control texts as control tokens.

        Args:
            rendered: Output of a template over marked texts; or one marked text.

        Returns:
            Token ids; nothing is put before or behind them.

        Raises:
            AmbiguousTextError: The vocabulary has a control token for text that is no control text.
        """
        spans = [(start, end, self._is_marked(rendered, start)) for start, end in self._spans(rendered)]
        expected = sum(not marked for _, _, marked in spans)
        # In a vocabulary of whole pieces (Unigram) a control text may be an entry like any other. Then it is
        # split after its first character, at the price of what the tokenizer does at the start of a text.
        for split in (False, True):
            ids = self._encode(rendered, spans, split=split)
            if sum(token_id in self._control_ids for token_id in ids) == expected:
                return ids
        raise AmbiguousTextError

    def _encode(self, rendered: str, spans: list[tuple[int, int, bool]], *, split: bool) -> list[int]:
        parts: list[str] = []
        done = 0
        for start, end, marked in spans:
            parts.append(rendered[done:start])
            text, done = rendered[start:end], end
            if not marked:
                parts.append(self._aliases[text])
            else:
                parts.append(f"{text[0]}{self._break}{text[1:]}" if split else text)
        parts.append(rendered[done:])
        ids = self._twin.encode(self.unmark("".join(parts)), add_special_tokens=False).ids
        return [self._ids.get(token_id, token_id) for token_id in ids if token_id != self._break_id]

    def _is_marked(self, rendered: str, start: int) -> bool:
        return rendered.startswith(self._start, start - len(self._start)) if start else False

    def _spans(self, text: str) -> list[tuple[int, int]]:
        """Start and end of each control text, leftmost and longest first, none overlapping."""
        found = self._scanner.encode(text, add_special_tokens=False)
        return [span for token_id, span in zip(found.ids, found.offsets, strict=True) if token_id]
