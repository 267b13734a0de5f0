"""From messages or a prompt to token ids: the model's own chat template, fed with text that stays text.

The invariants: what a client wrote never becomes a control token unless ``parse_special`` says that it may
(see `control_tokens.py`); a request that can't become a prompt ends in a typed error that names the message
and holds no traceback; text that can't fit the model's context is refused before it is tokenised.

A conversation that ends with an assistant's message is continued: the new text follows that message's last
character. A model without a template gets `DEFAULT_TEMPLATE`, a plain transcript that base models go on
with. A turn that follows exact ids is what the template writes behind an answer, so the ids stay as they are.

Thread-safe: after construction nothing is changed but for a figure that each thread would count alike,
neither here nor in the tokenizers (whose truncation, padding and "split special tokens" are settings of the
object, so that one that is shared may not be set per call).
"""

import re
import secrets
from collections.abc import Sequence
from functools import cached_property

from attrs import frozen
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from seedance_server.engine.control_tokens import (
    AmbiguousTextError,
    ControlTokens,
    find_control_texts,
    twin_tokenizer,
)
from seedance_server.engine.errors import ContextLengthExceeded, InvalidParameter, TemplateError

__all__ = ["DEFAULT_TEMPLATE", "ROLES", "ChatTurn", "PromptEncoder"]

ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})
"""The roles that a client may use. Templates print a role between control tokens, so it is no free text."""

DEFAULT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] | capitalize }}: {{ message['content'] | trim }}"
    "{% if add_generation_prompt or not loop.last %}{{ '\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
)
r"""Lines of "Role: content" and an open "Assistant:"."""

_DEFAULT_ENDS = ("\nUser:",)

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")  # OpenAI's rule for names
_MAX_REASON_CHARS = 300  # of a template's own message; some quote the conversation


@frozen
class ChatTurn:
    """One message of a conversation, as the client sent it.

    Attributes:
        role: Who speaks; one of `ROLES`.
        content: What is said. None is refused: without tools there is nothing else to say.
        name: Which of several speakers of this role, for templates that print it; 1 to 64 of ``A-Za-z0-9_-``.
    """

    role: str
    content: str | None
    name: str | None = None


class PromptEncoder:
    """Encodes prompts for one model. Its methods may be called from any thread.

    Args:
        tokenizer: The model's "fast" tokenizer; only read.
        context_length: Tokens that a prompt and its answer may have together.
        default_template: Jinja source for a model that has no chat template.
        nonce: Random digits, see `ControlTokens`; drawn from the operating system by default.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerFast,
        *,
        context_length: int,
        default_template: str = DEFAULT_TEMPLATE,
        nonce: str | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._limit = context_length - 1  # one token at least is to be generated
        self._has_template = bool(tokenizer.chat_template)
        self._template: str = tokenizer.get_chat_template() if self._has_template else default_template
        backend = tokenizer.backend_tokenizer
        nonce = nonce or str(secrets.randbits(128))
        self._control = ControlTokens(backend, find_control_texts(backend, self._template), nonce)
        self._plain, self._plain_ids = twin_tokenizer(backend, {})
        self._line_break: list[int] = self._plain.encode("\n", add_special_tokens=False).ids
        self._prefix, self._suffix = _frame(tokenizer)
        self._added_ids = frozenset(tokenizer.added_tokens_decoder)
        self._answer = f"answer{nonce}"  # stands for an earlier one; nobody else can write it

    @cached_property
    def _longest_token(self) -> int:
        return _longest_token(self._tokenizer.backend_tokenizer)

    @property
    def answer_ends(self) -> tuple[str, ...]:
        """Where an answer in turns is over, beside the model's own end.

        A template's turns end with control tokens. In a plain transcript a base model goes on with the other
        side's part, and these strings, which are no part of the answer, are how that begins.
        """
        return () if self._has_template else _DEFAULT_ENDS

    def encode_chat(self, messages: Sequence[ChatTurn], parse_special: bool = False) -> list[int]:
        """Applies the chat template and encodes the result.

        Args:
            messages: The conversation, oldest first.
            parse_special: Trust the texts: control tokens written in them count, as in `apply_chat_template`.

        Returns:
            Token ids of a prompt at whose end the assistant's turn is open.

        Raises:
            InvalidParameter: ``messages`` is empty, holds no text, or a message has an unknown role, no
                content, a bad name or text that isn't Unicode.
            TemplateError: The model's template refuses this conversation.
            ContextLengthExceeded: The texts surely have more tokens than fit; they were not tokenised.
        """
        self._check_messages(messages)
        self._check_length(sum(len(turn.content or "") for turn in messages))
        rendered = self._render(messages, marked=not parse_special)
        ids = self._encode(rendered, "messages", parse_special=parse_special)
        return ids if self._has_template else self._prefix + ids  # a template writes its own BOS

    def encode_turn(
        self, messages: Sequence[ChatTurn], preceding_ids: Sequence[int], parse_special: bool = False
    ) -> list[int]:
        """Encodes the next turn of a conversation whose ids so far are kept as they are.

        Args:
            messages: What is new; usually one message of the user.
            preceding_ids: Prompt and answer of the turn before, with the end token if one was generated (the
                template's own is then left out).
            parse_special: As for `encode_chat`.

        Returns:
            ``preceding_ids``, then the ids of what is new; at their end the assistant's turn is open.

        Raises:
            InvalidParameter: As for `encode_chat`.
            TemplateError: The template refuses these messages behind an answer, or shows no earlier answers.
            ContextLengthExceeded: All together surely has more tokens than fit.
        """
        self._check_messages(messages)
        self._check_length(sum(len(turn.content or "") for turn in messages), len(preceding_ids))
        before = [{"role": "user", "content": "question"}, {"role": "assistant", "content": self._answer}]
        rendered = self._render(messages, marked=not parse_special, before=before)
        _, answer, new = rendered.rpartition(self._answer)
        if not answer:
            raise TemplateError("it shows no earlier answers, so nothing can follow one")
        ids = self._encode_inside(new, "messages", parse_special=parse_special)
        return [*preceding_ids, *self._without_end(ids, preceding_ids)]

    def encode_text(self, prompt: str, parse_special: bool = False, *, is_start: bool = True) -> list[int]:
        """Encodes a prompt without a template, with what the tokenizer puts around any text (BOS).

        Args:
            prompt: The text to continue.
            parse_special: Trust the text: control tokens written in it count, as in `tokenizer(prompt)`.
            is_start: False if the text goes on behind other ids: nothing is put around it or before its first
                word.

        Returns:
            Token ids.

        Raises:
            InvalidParameter: ``prompt`` is empty, all white space or isn't Unicode.
            ContextLengthExceeded: The text surely has more tokens than fit; it was not tokenised.
        """
        self._check_length(len(prompt))
        _check_unicode(prompt, "prompt", "must be valid Unicode")
        if not prompt.strip():
            raise InvalidParameter("prompt", "must hold more than white space")
        text = prompt if parse_special else self._control.mark(prompt)
        if not is_start:
            return self._encode_inside(text, "prompt", parse_special=parse_special)
        return self._prefix + self._encode(text, "prompt", parse_special=parse_special) + self._suffix

    def _check_length(self, characters: int, tokens_before: int = 0) -> None:
        if tokens_before + characters <= self._limit:
            return  # so the longest token is looked for when a long text comes: it takes 0.2 s
        # No token stands for more characters than the longest one has. (A tokenizer that drops or merges what
        # it doesn't know could fit more; nobody needs a megabyte of spaces.)
        at_least = tokens_before - (-characters // self._longest_token)
        if at_least > self._limit:
            raise ContextLengthExceeded(at_least, self._limit, exact=False)

    def _check_messages(self, messages: Sequence[ChatTurn]) -> None:
        if not messages:
            raise InvalidParameter("messages", "must hold at least one message")
        for index, turn in enumerate(messages):
            where = f"must have in message {index}"
            if turn.role not in ROLES:
                raise InvalidParameter("messages", f"{where} a role among {', '.join(sorted(ROLES))}")
            if not isinstance(turn.content, str):
                raise InvalidParameter("messages", f"{where} a content that is text")
            if turn.name is not None and not _NAME.fullmatch(turn.name):
                raise InvalidParameter("messages", f"{where} a name of 1 to 64 letters, digits, '_' or '-'")
        if not any((turn.content or "").strip() for turn in messages):
            raise InvalidParameter("messages", "must hold more than white space")
        if messages[-1].role == "assistant" and not (messages[-1].content or "").strip():
            raise InvalidParameter("messages", "must not end with an empty message of the assistant")

    def _render(
        self, messages: Sequence[ChatTurn], *, marked: bool, before: Sequence[dict[str, str]] = ()
    ) -> str:
        conversation = list(before)
        for index, turn in enumerate(messages):
            content = turn.content or ""
            _check_unicode(
                content, "messages", f"must have in message {index} a content that is valid Unicode"
            )
            message = {"role": turn.role, "content": self._control.mark(content) if marked else content}
            conversation.append(message if turn.name is None else {**message, "name": turn.name})
        goes_on = messages[-1].role == "assistant"
        try:
            rendered: str = self._tokenizer.apply_chat_template(
                conversation,
                chat_template=self._template,
                tokenize=False,
                add_generation_prompt=not goes_on,
                continue_final_message=goes_on,
            )
        except Exception as error:  # noqa: BLE001 - a template is the model's code: it may raise anything
            lines = self._control.unmark(str(error)).strip().splitlines() or [type(error).__name__]
            raise TemplateError(lines[0][:_MAX_REASON_CHARS]) from None
        return rendered

    def _encode(self, text: str, field: str, *, parse_special: bool) -> list[int]:
        if parse_special:
            ids = self._plain.encode(text, add_special_tokens=False).ids
            ids = [self._plain_ids.get(token_id, token_id) for token_id in ids]
        else:
            try:
                ids = self._control.encode(text)
            except AmbiguousTextError:
                reason = "must not hold text that this model's tokenizer takes for a control token"
                raise InvalidParameter(field, reason) from None
        if not ids:
            raise InvalidParameter(field, "must hold text that this model's tokenizer knows")
        return ids

    def _encode_inside(self, text: str, field: str, *, parse_special: bool) -> list[int]:
        """Ids of a text that isn't the start of one: many tokenizers put a space before the first word."""
        head = self._line_break
        ids = self._encode(f"\n{text}", field, parse_special=parse_special)
        if len(ids) > len(head) and ids[: len(head)] == head:
            return ids[len(head) :]
        return self._encode(text, field, parse_special=parse_special)  # it melts with the line break

    def _without_end(self, ids: list[int], preceding_ids: Sequence[int]) -> list[int]:
        """``ids`` less an end token at their start that the answer before has generated already."""
        end = preceding_ids[-1] if preceding_ids else None
        if end not in self._added_ids or end not in ids:
            return ids
        behind = ids.index(end) + 1
        blank = not self._tokenizer.decode(ids[: behind - 1]).strip()  # Llama 2 writes a space before it
        return ids[behind:] if blank else ids


def _check_unicode(text: str, field: str, reason: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidParameter(field, reason) from None


def _longest_token(tokenizer: Tokenizer) -> int:
    """Characters of the longest token. They are asked for one by one: all at once take 70 MB."""
    size = tokenizer.get_vocab_size()
    lengths = [len(token) for token in map(tokenizer.id_to_token, range(size)) if token is not None]
    if len(lengths) < size:  # ids with gaps
        lengths = list(map(len, tokenizer.get_vocab()))
    return max(lengths)


def _frame(tokenizer: PreTrainedTokenizerFast) -> tuple[list[int], list[int]]:
    """The ids that the tokenizer puts before and behind a text."""
    bare: list[int] = tokenizer("a", add_special_tokens=False)["input_ids"]
    framed: list[int] = tokenizer("a")["input_ids"]
    starts = (start for start in range(len(framed)) if framed[start : start + len(bare)] == bare)
    start = next(starts, 0)
    return framed[:start], framed[start + len(bare) :]
