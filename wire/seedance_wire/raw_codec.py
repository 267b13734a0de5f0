"""seedance.v1.raw: requests in JSON, answers as UTF-8 text that needs no parser but a line splitter (S13).

A text WebSocket message from the server is one or more blocks (`raw_blocks.py`). For frames ``event`` is the
type, ``id`` is ``stream:epoch:id:offset``, and the data of a DELTA is the text itself. Whatever else a
message says is JSON in the data, without its type.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final as Constant

from .envelope import MAX_FRAMES, CodedDelta, FromClient, FromServer, Outgoing, Pieces, check_envelope
from .errors import CloseCode, DecodeError, LocalProtocolError
from .json_client import client_message_from_json, client_message_to_json
from .json_codec import parse_json, write_json
from .json_fields import Fields
from .json_frames import (
    failure_from_json,
    failure_to_json,
    final_from_json,
    final_to_json,
    logprobs_from_json,
    logprobs_to_json,
)
from .json_server import server_message_from_json, server_message_to_json
from .messages import (
    Delta,
    Error,
    Flush,
    Frame,
    ServerMessage,
)
from .raw_blocks import Block, BlockParser, write_block
from .validity import InvalidFieldError, check_outgoing, check_received

__all__ = ["RawCodec"]

_NUMBERING: Constant = re.compile(":".join(["(0|[1-9][0-9]{0,19})"] * 4), re.ASCII)
_TOKENS: Constant = re.compile("0|[1-9][0-9]{0,9}", re.ASCII)
_CONTROL: Constant = frozenset(
    {
        *("welcome", "accepted", "refused", "checkpoint", "resumed", "resume_rejected", "flow", "status"),
        "goaway",
    }
)


class RawCodec:
    """The raw encoding."""

    subprotocol = "seedance.v1.raw"
    carries_differences = False
    capabilities = ()

    def encode(self, messages: Sequence[Outgoing]) -> str:
        """Writes one envelope; see `Codec`."""
        check_envelope(messages)
        return "".join(map(_write, messages))

    def decode_client(self, payload: bytes | str) -> Sequence[FromClient]:
        """Reads a client's envelope; see `Codec`."""
        return (client_message_from_json(parse_json(payload)),)

    def decode_server(self, payload: bytes | str) -> Sequence[FromServer]:
        """Reads a server's envelope; see `Codec`."""
        if not isinstance(payload, str):
            raise DecodeError("a binary message, where the encoding is text", CloseCode.UNSUPPORTED_DATA)
        parser = BlockParser(max_block_chars=len(payload))
        blocks = parser.feed(payload)
        if not 1 <= len(blocks) <= MAX_FRAMES or not parser.between_blocks:
            raise DecodeError(f"a message is 1 to {MAX_FRAMES} whole blocks")
        messages = [_read(block) for block in blocks]
        if len(messages) > 1 and not all(isinstance(m, Delta | Flush | Error) for m in messages):
            raise DecodeError("only frames share a message")
        return messages


def _write(message: Outgoing) -> str:
    check_outgoing(message)
    match message:
        case CodedDelta() | Pieces():
            raise LocalProtocolError("this encoding carries frames whole")
        case Delta() | Flush() | Error():
            return write_block(_frame_block(message))
    if not isinstance(message, ServerMessage):
        return write_json(client_message_to_json(message))
    members = server_message_to_json(message)
    event = str(members.pop("type"))
    return write_block(Block(event=event, data=write_json(members)))


def _frame_block(frame: Frame) -> Block:
    numbering = f"{frame.stream_id}:{frame.epoch}:{frame.id}:{frame.offset}"
    match frame:
        case Delta():
            extra = []
            if frame.token_count != 1:
                extra.append(("tokens", str(frame.token_count)))
            if frame.logprobs:
                extra.append(("logprobs", write_json(logprobs_to_json(frame.logprobs))))
            return Block(event="delta", id=numbering, data=frame.text, extra=tuple(extra))
        case Flush():
            data = "" if frame.final is None else write_json(final_to_json(frame.final))
            return Block(event="flush", id=numbering, data=data)
        case Error():
            return Block(event="error", id=numbering, data=write_json(failure_to_json(frame)))


def _read(block: Block) -> FromServer:
    if block.event in _CONTROL:
        members = parse_json(block.data)
        if not isinstance(members, dict):
            raise DecodeError("the data of a control message is a JSON object")
        return server_message_from_json(members | {"type": block.event})
    try:
        frame = _read_frame(block)
    except InvalidFieldError as error:
        raise DecodeError(str(error)) from None
    check_received(frame)
    return frame


def _read_frame(block: Block) -> Frame:
    numbering = _NUMBERING.fullmatch(block.id or "")
    if numbering is None:
        raise InvalidFieldError("id", "must be stream:epoch:id:offset")
    stream_id, epoch, id_, offset = map(int, numbering.groups())
    extra = dict(block.extra)
    match block.event:
        case "delta":
            tokens = extra.get("tokens", "1")
            if not _TOKENS.fullmatch(tokens):
                raise InvalidFieldError("tokens", "must be a number")
            logprobs = parse_json(extra["logprobs"]) if "logprobs" in extra else None
            return Delta(
                stream_id=stream_id,
                id=id_,
                epoch=epoch,
                offset=offset,
                text=block.data,
                token_count=int(tokens),
                logprobs=logprobs_from_json(Fields({"logprobs": logprobs})),
            )
        case "flush":
            final = final_from_json(Fields(parse_json(block.data))) if block.data else None
            return Flush(stream_id=stream_id, id=id_, epoch=epoch, offset=offset, final=final)
        case "error":
            fields = Fields(parse_json(block.data))
            code, retryable, retry_after_ms = failure_from_json(fields)
            return Error(
                stream_id=stream_id,
                id=id_,
                epoch=epoch,
                offset=offset,
                code=code,
                message=fields.text("message"),
                retryable=retryable,
                retry_after_ms=retry_after_ms,
            )
    raise InvalidFieldError("event", "must be the name of a server's message")
