"""What one WebSocket message holds, between a codec and the connection.

An envelope is one message, or several frames. Codecs are pure functions on envelopes; what depends on the
past (cursors, delta contexts) is done around them by `connection.py`. So a DELTA whose text travels as
differences leaves and enters a codec as `CodedDelta`, and a SUBMIT whose body is wrong enters as
`InvalidSubmit`: the server can answer it with REFUSED, because it is known which request it is. Frames that
travel without what their reader knows are `Pieces`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from attrs import frozen

from .errors import LocalProtocolError
from .messages import ClientMessage, Delta, Error, Flush, Frame, ServerMessage, TokenLogprob

__all__ = [
    "MAX_ACK_ENTRIES",
    "MAX_ACTION_BYTES",
    "MAX_CHECKPOINT_ENTRIES",
    "MAX_EVENTS",
    "MAX_FRAMES",
    "MAX_LIST_ENTRIES",
    "MAX_LOGPROB_ENTRIES",
    "MAX_PAYLOAD_BYTES",
    "CodedDelta",
    "FromClient",
    "FromServer",
    "Gap",
    "InvalidSubmit",
    "Outgoing",
    "Pieces",
    "check_envelope",
]

MAX_FRAMES = 8192
"""Frames in an envelope: 64 streams with full windows of 128. Bounds what a hostile sender makes us build."""

MAX_ACK_ENTRIES = 1024
"""Streams in an ACK: far above the streams of a connection, far below what 256 KiB could hold."""

MAX_CHECKPOINT_ENTRIES = 1024
"""Streams in a CHECKPOINT, for the same reason; news of more than that go into the next one."""

MAX_LIST_ENTRIES = 1024
"""Entries of any other list but token ids: turns, parts of a turn, stop strings, capabilities. An empty entry
takes two bytes and builds an object, so without this one message would stop its reader for a second."""

MAX_LOGPROB_ENTRIES = 16_384
"""Tokens and alternatives with their log probabilities in an envelope; an honest 256 KiB hold fewer."""


MAX_EVENTS = 1024
"""Events in an EVENT: a batch that compresses well, and nothing that stops its reader."""

MAX_ACTION_BYTES = 256
"""UTF-8 bytes of an event's action: a name, not a text; picked, not measured."""

MAX_PAYLOAD_BYTES = 65_536
"""Bytes of one event's payload, so that four fit the message that every server reads."""


@frozen(kw_only=True)
class CodedDelta:
    """A DELTA frame whose text is still, or already, in differences of code points."""

    stream_id: int
    id: int
    epoch: int
    offset: int
    difference: bytes
    token_count: int = 1
    logprobs: tuple[TokenLogprob, ...] = ()


@frozen(kw_only=True)
class Pieces:
    """Frames in sending order, of which the DELTAs may lack what their reader derives from those before.

    Such a DELTA is a piece: the next of its stream, without log probabilities.

    Attributes:
        number: Counts these envelopes on a connection from 1, modulo 128.
        stream_ids: Of each piece, 0 where the next of ``frames`` stands; empty for those of the last envelope
            that had some without a 0.
        data: The texts of all pieces, whole or as differences, one behind the other.
        sizes: Of each piece, twice its bytes in ``data``, plus 1 for differences; empty for one piece, whole.
        token_counts: Of each piece; empty where each stands for one.
        frames: Those that are no pieces.
    """

    number: int
    stream_ids: tuple[int, ...]
    data: bytes
    sizes: tuple[int, ...] = ()
    token_counts: tuple[int, ...] = ()
    frames: tuple[Frame | CodedDelta, ...] = ()


@frozen(kw_only=True)
class InvalidSubmit:
    """A SUBMIT in a sound envelope whose body cannot be used; to be answered with REFUSED.

    Attributes:
        sequence_id: Of the SUBMIT; it counts as used.
        field: The field at fault, as ``messages[0].content`` or ``top_p``.
        reason: What is wrong with it, for people.
    """

    sequence_id: int
    field: str
    reason: str


@frozen(kw_only=True)
class Gap:
    """A frame came that does not fit, of a stream that can be resumed. It and what follows it are dropped.

    Attributes:
        stream_id: The stream. RESUME from the last frame that was given out brings what is missing.
        frame_id: The frame that came.
    """

    stream_id: int
    frame_id: int


FromClient: TypeAlias = ClientMessage | InvalidSubmit
FromServer: TypeAlias = ServerMessage | CodedDelta | Pieces
Outgoing: TypeAlias = ClientMessage | ServerMessage | CodedDelta | Pieces


def check_envelope(messages: Sequence[object]) -> None:
    """Checks that these messages may share an envelope.

    Raises:
        LocalProtocolError: There are none, too many, or several that are not all frames.
    """
    if not 1 <= len(messages) <= MAX_FRAMES:
        raise LocalProtocolError(f"an envelope holds 1 to {MAX_FRAMES} messages, not {len(messages)}")
    if len(messages) > 1 and not all(isinstance(m, Delta | Flush | Error | CodedDelta) for m in messages):
        raise LocalProtocolError("only frames share an envelope; other messages go one by one")
