# Invariant: whatever bytes a peer sends, this process either gets messages that the protocol allows or raises
# a RemoteProtocolError (DecodeError for a parser alone). What it got, it can write, and reading that gives it
# again. Nothing else is ever raised, and nothing hangs.
"""One fuzz target for each parser of the wire, plain functions of bytes.

`run.py` drives them with coverage guidance, `tests/wire/test_fuzz_corpus.py` replays the corpus through them.
They must not need the fuzzer to be installed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from attrs import evolve

from seedance_wire.bookmark import Bookmark
from seedance_wire.client_session import ClientSession
from seedance_wire.codec import SUBPROTOCOLS, Codec, make_codec
from seedance_wire.compression import Compressor, Decompressor, longest_packed
from seedance_wire.connection import Connection
from seedance_wire.delta import apply_difference, difference
from seedance_wire.envelope import FromClient, FromServer, InvalidSubmit, Outgoing, Pieces
from seedance_wire.errors import DecodeError, InvalidBookmarkError, LocalProtocolError, RemoteProtocolError
from seedance_wire.event_delta import MAX_UNPACKED_BYTES, pack_events, unpack_events
from seedance_wire.messages import (
    Accepted,
    Bye,
    Delta,
    Durability,
    Error,
    Flush,
    Hello,
    Limits,
    Submit,
    Welcome,
)
from seedance_wire.piece_reader import Missing, PieceReader
from seedance_wire.raw_blocks import Block, BlockParser, write_block
from seedance_wire.state import ConnectionState, Role
from seedance_wire.stored_form import (
    dump_events,
    dump_frame,
    dump_submit,
    load_events,
    load_frame,
    load_submit,
    request_fingerprint,
)

__all__ = ["TARGETS", "frame_messages", "join_messages"]

PROTOBUF, JSON, RAW = map(make_codec, SUBPROTOCOLS)
_LIMIT = 4096  # bytes of a message


def _read_and_rewrite(
    codec: Codec, decode: Callable[[bytes | str], Sequence[FromClient | FromServer]], payload: bytes | str
) -> None:
    """Reads a payload; if it is a message, writes it and reads that."""
    try:
        messages = decode(payload)
    except DecodeError:
        return
    writable: list[Outgoing] = [m for m in messages if not isinstance(m, InvalidSubmit)]
    if not writable:
        return
    again = decode(codec.encode(writable))
    assert list(map(_readable, again)) == list(map(_readable, writable))


def _readable(message: object) -> str:
    """A message as it reads: NaN equals nothing, but reads the same, and biases have no order."""
    if isinstance(message, Submit):
        sampling = message.sampling
        biases = sorted(map(repr, sampling.logit_bias.items()))
        message = evolve(message, sampling=evolve(sampling, logit_bias={}))
        return f"{message}{biases}"
    return repr(message)


def protobuf_client(data: bytes) -> None:
    """A client's envelope in protobuf, as a server reads it."""
    _read_and_rewrite(PROTOBUF, PROTOBUF.decode_client, data)


def protobuf_server(data: bytes) -> None:
    """A server's envelope in protobuf, as a client reads it."""
    _read_and_rewrite(PROTOBUF, PROTOBUF.decode_server, data)


def json_client(data: bytes) -> None:
    """A client's envelope in JSON. Bytes that are not UTF-8 become what `json` must survive anyway."""
    _read_and_rewrite(JSON, JSON.decode_client, data.decode(errors="surrogateescape"))


def json_server(data: bytes) -> None:
    """A server's envelope in JSON."""
    _read_and_rewrite(JSON, JSON.decode_server, data.decode(errors="surrogateescape"))


def raw_server(data: bytes) -> None:
    """A server's envelope in raw text."""
    _read_and_rewrite(RAW, RAW.decode_server, data.decode(errors="surrogateescape"))


def raw_blocks(data: bytes) -> None:
    """The block parser: the same blocks whole, byte by byte, and written again."""

    def outcome(chunks: Sequence[bytes]) -> object:
        parser = BlockParser(max_block_chars=4096)
        found: list[Block] = []
        try:
            for chunk in chunks:
                found += parser.feed(chunk)
        except DecodeError:
            return None  # which fault is met first does depend on the cuts
        return found

    whole = outcome([data])
    assert outcome([data[index : index + 1] for index in range(len(data))]) == whole
    if isinstance(whole, list):
        assert BlockParser().feed("".join(map(write_block, whole))) == whole


def delta(data: bytes) -> None:
    """Differences: three bytes of context, then what a peer sent."""
    context = int.from_bytes(data[:3]) % 0xD800
    try:
        text = apply_difference(data[3:], context)
    except DecodeError:
        return
    assert difference(text, context) == data[3:]


def event_delta(data: bytes) -> None:
    """Packed events: they unfold within bounds, and read the same when packed again."""
    try:
        events = unpack_events(data, limit=100)
    except DecodeError:
        return
    assert sum(len(event.action.encode()) + len(event.payload) for event in events) <= MAX_UNPACKED_BYTES
    assert unpack_events(pack_events(events), limit=100) == events


def compression(data: bytes) -> None:
    """Messages under zstd: each is bounded, and what it holds comes back when it is packed again.

    Each message follows its length in two bytes.
    """
    reader, writer, again = Decompressor(_LIMIT), Compressor(trial_messages=0), Decompressor(_LIMIT)
    for payload in _split(data):
        try:
            message = reader.unpack(payload)
        except RemoteProtocolError:
            return
        if message is payload:  # it was between two frames
            continue
        assert len(message) <= _LIMIT
        packed = writer.pack(message, last=False)
        assert len(packed) <= longest_packed(len(message))
        assert again.unpack(packed) == message


def pieces(data: bytes) -> None:
    """Envelopes of pieces: the ids of a stream follow each other, from a frame that has its own.

    Each envelope follows its length in two bytes.
    """
    reader = PieceReader(1, {}.get)  # type: ignore[arg-type]  # no offset is looked at
    next_ids: dict[int, int] = {}
    for payload in _split(data):
        try:
            (envelope,) = PROTOBUF.decode_server(payload)
            if not isinstance(envelope, Pieces):
                return
            numbered = {id(frame) for frame in envelope.frames}
            for frame in reader.frames(envelope):
                if isinstance(frame, Missing):
                    if frame.stream_id is None:
                        next_ids.clear()
                    continue
                if id(frame) not in numbered:
                    assert frame.id == next_ids[frame.stream_id]
                if isinstance(frame, Error) or (isinstance(frame, Flush) and frame.final is not None):
                    next_ids.pop(frame.stream_id, None)
                else:
                    next_ids[frame.stream_id] = max(frame.id + 1, next_ids.get(frame.stream_id, 0))
        except DecodeError:
            return


def _split(data: bytes) -> Iterator[bytes]:
    while data:
        size = int.from_bytes(data[:2])
        yield data[2 : 2 + size]
        data = data[2 + size :]


def join_messages(payloads: Iterable[bytes]) -> bytes:
    """Returns the input of a target that takes messages."""
    return b"".join(len(payload).to_bytes(2) + payload for payload in payloads)


def frame_messages(
    role: Role, subprotocol: str, payloads: Sequence[bytes], *, capable: bool = False
) -> bytes:
    """Returns the input of `connection` for these payloads."""
    head = bytes([capable << 7 | SUBPROTOCOLS.index(subprotocol) << 1 | (role is Role.SERVER)])
    return head + join_messages(payloads)


def connection(data: bytes) -> None:
    """A whole connection, message by message: true offsets and digests, or an error for good.

    The first byte chooses role and subprotocol, and whether it is open already and all that both can do is
    agreed on; each message follows its length in two bytes.
    """
    head = data[0] if data else 0
    role = Role.SERVER if head & 1 else Role.CLIENT
    subprotocol = SUBPROTOCOLS[((head & 0x7F) >> 1) % len(SUBPROTOCOLS)]
    under_test = Connection(role, subprotocol, max_message_bytes=4096)
    capabilities = under_test.capabilities if head & 0x80 else ()
    if role is Role.CLIENT:
        _open(under_test, capabilities)
    elif head & 0x80:
        _open_server(under_test, capabilities)
    texts: dict[int, str] = {}
    for payload in _split(data[1:]):
        is_text = subprotocol != SUBPROTOCOLS[0]
        try:
            under_test.receive_data(payload.decode(errors="surrogateescape") if is_text else payload)
        except RemoteProtocolError:
            assert under_test.state is ConnectionState.ERROR
            _check_closed_for_good(under_test)
            return
        while (event := under_test.next_event()) is not None:
            if isinstance(event, Delta | Flush | Error):
                text = texts.setdefault(event.stream_id, "")
                assert event.offset == len(text.encode())
                if isinstance(event, Delta):
                    texts[event.stream_id] += event.text
                elif isinstance(event, Flush) and event.final is not None:
                    assert event.final.digest == hashlib.sha256(text.encode()).digest()


def client_session(data: bytes) -> None:
    """A client's session: what a server says on its second connection never repeats or skips a byte.

    The first byte chooses the subprotocol; each message follows its length in two bytes. An empty one is a
    cut, after which the client connects again.
    """
    subprotocol = SUBPROTOCOLS[data[0] % len(SUBPROTOCOLS)] if data else SUBPROTOCOLS[0]
    codec = make_codec(subprotocol)
    session = ClientSession(subprotocol, hello=Hello(), max_message_bytes=4096)
    welcome = Welcome(
        session_id="s",
        epoch=1,
        last_sequence_id=0,
        model="m",
        limits=Limits(max_message_bytes=4096, max_streams=2, max_context_tokens=1),
        resume_token=b"t",
    )
    session.connect()
    session.receive_data(codec.encode((welcome,)))
    for number in (1, 2):
        session.submit(Submit(sequence_id=0, idempotency_key=bytes([number]) * 16, prompt="p"))
        session.data_to_send()
        accepted = Accepted(sequence_id=number, stream_id=number, durability=Durability.COMMITTED)
        session.receive_data(codec.encode((accepted,)))
    texts: dict[int, str] = {}
    applied: dict[int, int] = {}
    session.connect()
    for payload in _split(data[1:]):
        is_text = subprotocol != SUBPROTOCOLS[0]
        try:
            if payload:
                session.receive_data(payload.decode(errors="surrogateescape") if is_text else payload)
            else:
                session.connect()
        except RemoteProtocolError:
            session.connect()
        while (event := session.next_event()) is not None:
            if isinstance(event, Delta | Flush | Error):
                text = texts.setdefault(event.stream_id, "")
                assert event.id == applied.get(event.stream_id, 0) + 1
                assert event.offset == len(text.encode())
                applied[event.stream_id] = event.id
                if isinstance(event, Delta):
                    texts[event.stream_id] += event.text
        session.data_to_send()


def stored_form(data: bytes) -> None:
    """Frames and requests from a journal: what is read can be stored, and reads the same."""
    try:
        frame = load_frame(data, epoch=1)
    except DecodeError:
        pass
    else:
        assert _readable(load_frame(dump_frame(frame), epoch=1)) == _readable(frame)
    try:
        events = load_events(data)
    except DecodeError:
        pass
    else:
        assert load_events(dump_events(events)) == events
    try:
        submit = load_submit(data)
    except DecodeError:
        return
    assert _readable(load_submit(dump_submit(submit))) == _readable(submit)
    assert request_fingerprint(evolve(submit, sequence_id=1)) == request_fingerprint(submit)


def bookmark(data: bytes) -> None:
    """A bookmark that an application kept: it, or a text that is none."""
    try:
        place = Bookmark.from_str(data.decode(errors="surrogateescape"))
    except InvalidBookmarkError:
        return
    assert Bookmark.from_str(place.to_str()) == place


def _welcome(capabilities: tuple[str, ...]) -> Welcome:
    limits = Limits(max_message_bytes=4096, max_streams=2, max_context_tokens=1)
    return Welcome(
        session_id="s", epoch=1, last_sequence_id=0, model="m", limits=limits, capabilities=capabilities
    )


def _open(client: Connection, capabilities: tuple[str, ...]) -> None:
    """Brings a client to where frames of streams 1 and 2 may follow."""
    codec = make_codec(client.subprotocol)
    client.send(Hello(capabilities=capabilities))
    client.receive_data(codec.encode((_welcome(capabilities),)))
    for number in (1, 2):
        client.send(Submit(sequence_id=number, idempotency_key=b"k" * 16, prompt="p"))
        accepted = Accepted(sequence_id=number, stream_id=number, durability=Durability.NONE)
        client.receive_data(codec.encode((accepted,)))
    while client.next_event() is not None:
        pass


def _open_server(server: Connection, capabilities: tuple[str, ...]) -> None:
    """Brings a server to where requests may follow."""
    server.receive_data(make_codec(server.subprotocol).encode((Hello(capabilities=capabilities),)))
    while server.next_event() is not None:
        pass
    server.send(_welcome(capabilities))


def _check_closed_for_good(failed: Connection) -> None:
    for attempt in (lambda: failed.receive_data(b""), lambda: failed.send(Bye())):
        try:
            attempt()
        except (RemoteProtocolError, LocalProtocolError):
            continue
        raise AssertionError("a failed connection went on")


TARGETS: Mapping[str, Callable[[bytes], None]] = {
    target.__name__: target
    for target in (
        bookmark,
        client_session,
        compression,
        connection,
        delta,
        event_delta,
        json_client,
        json_server,
        pieces,
        protobuf_client,
        protobuf_server,
        raw_blocks,
        raw_server,
        stored_form,
    )
}
"""Every target by its name, which is also the name of its corpus directory."""
