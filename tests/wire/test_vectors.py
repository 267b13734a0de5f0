"""The conformance vectors: what any implementation must read and write, ours first."""

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from attrs import frozen

from seedance_wire import seedance_pb2 as pb
from seedance_wire.codec import SUBPROTOCOLS, make_codec
from seedance_wire.compression import Decompressor
from seedance_wire.connection import MAX_MESSAGE_BYTES, Connection
from seedance_wire.cursor import ReceiveCursor
from seedance_wire.delta import apply_difference, difference
from seedance_wire.envelope import MAX_EVENTS, CodedDelta, Gap, InvalidSubmit
from seedance_wire.errors import DecodeError, RemoteProtocolError
from seedance_wire.event_delta import pack_events, unpack_events
from seedance_wire.frame_writer import FrameWriter
from seedance_wire.heartbeat import decode_heartbeat, encode_heartbeat
from seedance_wire.messages import Delta, ErrorCode, Frame, Refused, ResumeFailure, ResumeRejected, UserEvent
from seedance_wire.piece_reader import Missing, PieceReader
from seedance_wire.running_digest import RunningDigest
from seedance_wire.state import ConnectionState, Role
from seedance_wire.window import SlidingWindow

VECTORS = Path(__file__).parents[2] / "wire" / "vectors"
ENCODINGS = dict(zip(("protobuf", "json", "raw"), map(make_codec, SUBPROTOCOLS), strict=True))


def cases(name: str) -> Any:
    """The cases of a file as parameters."""
    read = json.loads((VECTORS / name).read_text())["cases"]
    return pytest.mark.parametrize("case", read, ids=lambda case: case.get("name", ""))


def payload_of(encoding: str, written: str) -> bytes | str:
    """A WebSocket message from how a vector writes it."""
    return bytes.fromhex(written) if encoding in {"protobuf", "seedance.v1"} else written


@cases("messages.json")
def test_message_reads_and_writes_as_the_vector_says(case: dict[str, str]) -> None:
    """All encodings of a vector give one message, and that message gives each of them back."""
    decoded = []
    for encoding, codec in ENCODINGS.items():
        if encoding not in case:
            assert (case["from"], encoding) == ("client", "raw")
            continue
        payload = payload_of(encoding, case[encoding])
        messages = codec.decode_client(payload) if case["from"] == "client" else codec.decode_server(payload)
        decoded.append(tuple(messages))
        assert not any(isinstance(message, InvalidSubmit) for message in messages)
        assert codec.encode(messages) == payload  # type: ignore[arg-type]
    assert decoded[1:] == decoded[:-1]


def of_the_future(sender: str, payload: bytes | str) -> bytes | str | None:
    """The same message with a field that no version has yet; None where none may be added."""
    if isinstance(payload, bytes):
        envelope = (pb.ClientEnvelope if sender == "client" else pb.ServerEnvelope).FromString(payload)
        inner = getattr(envelope, str(envelope.WhichOneof("message")))
        inner.MergeFromString(b"\xfa\xff\x01\x03new")  # field 4095, of three bytes
        envelope.MergeFromString(b"\xf8\xff\x01\x07")  # beside it, a number
        return envelope.SerializeToString()
    if payload.startswith("{"):
        read = json.loads(payload)
        # A misspelt parameter must not be ignored, so SUBMIT in JSON knows no future.
        return None if read.get("type") == "submit" else json.dumps(read | {"of_the_future": {"x": [1]}})
    return None


@cases("messages.json")
def test_message_with_fields_of_the_future_is_read_without_them(case: dict[str, str]) -> None:
    """A peer of a later minor version is understood, in both directions, as far as this one goes."""
    for encoding in ("protobuf", "json"):
        codec = ENCODINGS[encoding]
        decode = codec.decode_client if case["from"] == "client" else codec.decode_server
        payload = payload_of(encoding, case[encoding])
        newer = of_the_future(case["from"], payload)
        if newer is not None:
            assert newer != payload
            assert decode(newer) == decode(payload)


def members(value: object) -> Iterator[str]:
    """The names of all members, however deep, but for those of messages in JSON."""
    if isinstance(value, dict):
        for name, member in value.items():
            yield name
            yield from members(member) if name not in {"frames", "missing"} else ()
    elif isinstance(value, list):
        for entry in value:
            yield from members(entry)


@pytest.mark.parametrize("path", sorted(VECTORS.glob("*.json")), ids=lambda path: path.name)
def test_vectors_are_described(path: Path) -> None:
    """Whoever runs them elsewhere knows what every member of every case is."""
    described = VECTORS.joinpath("README.md").read_text()
    row = next(line for line in described.splitlines() if line.startswith(f"| `{path.name}`"))
    read = json.loads(path.read_text())
    assert set(read) == {"about", "cases"}
    for name in set(members(read["cases"])) - {"name"}:
        assert f"`{name}`" in row, name


def test_messages_hold_every_code() -> None:
    """A code without a vector could be numbered differently elsewhere."""
    found = set()
    for case in json.loads((VECTORS / "messages.json").read_text())["cases"]:
        if case["from"] == "server":
            (message, *_) = ENCODINGS["json"].decode_server(case["json"])
            if isinstance(message, Refused | ResumeRejected):
                found.add(message.code)
    assert found == {*ErrorCode, *ResumeFailure}


def test_specification_quotes_bytes_of_the_vectors() -> None:
    """An example in the text that no test runs would be wrong one day."""
    text = VECTORS.with_name("PROTOCOL.md").read_text()
    vectors = "".join(path.read_text() for path in VECTORS.glob("*.json"))
    quoted = re.findall(r"`((?:[0-9a-f]{2}){2,})`", text)
    parts = []
    for block in re.findall(r"```\n(.*?)```", text, re.DOTALL):
        lines = [re.match(r" *((?:[0-9a-f]{2} )+)", line) for line in block.splitlines()]
        dumped = "".join(line[1].replace(" ", "") for line in lines if line)
        (quoted if "Envelope." in block else parts).append(dumped)
    parts = [part for part in parts if part]
    assert (len(quoted), len(parts)) == (8, 1)
    for bytes_shown in quoted:
        assert f'"{bytes_shown}"' in vectors
    for last_bytes_shown in parts:
        assert f'{last_bytes_shown}"' in vectors


def test_specification_quotes_messages_that_can_be_read() -> None:
    """An example in JSON or in blocks of lines is one message, as it stands, and is written the same."""
    text = VECTORS.with_name("PROTOCOL.md").read_text()
    shown = "".join(re.findall(r"```json\n(.*?)```", text, re.DOTALL)).splitlines()
    assert len(shown) == 2
    json_codec = ENCODINGS["json"]
    for line in shown:
        if "submit" in line:
            (message,) = json_codec.decode_client(line)
            assert not isinstance(message, InvalidSubmit)
        else:
            messages = json_codec.decode_server(line)
            assert json_codec.encode(messages) == line  # type: ignore[arg-type]
    (block,) = re.findall(r"```\n(event: .*?)```", text, re.DOTALL)
    messages = ENCODINGS["raw"].decode_server(block)
    assert ENCODINGS["raw"].encode(messages) == block  # type: ignore[arg-type]


@cases("rejects.json")
def test_reject_ends_the_connection_or_names_the_field(case: dict[str, Any]) -> None:
    """What is not accepted, and what comes of it."""
    codec = ENCODINGS[case["encoding"]]
    payload = payload_of(case["encoding"], case["payload"])
    decode = codec.decode_client if case["from"] == "client" else codec.decode_server
    if case["outcome"] == "error":
        with pytest.raises(DecodeError):
            decode(payload)
        return
    (message,) = decode(payload)
    assert isinstance(message, InvalidSubmit)
    assert {"sequence_id": message.sequence_id, "field": message.field} == case["outcome"]


@cases("delta.json")
def test_difference_is_as_the_vector_says(case: dict[str, Any]) -> None:
    """Text to bytes and back, or an error."""
    encoded = bytes.fromhex(case["difference"])
    if "error" in case:
        with pytest.raises(DecodeError):
            apply_difference(encoded, case["context"])
        return
    assert difference(case["text"], case["context"]) == encoded
    assert apply_difference(encoded, case["context"]) == case["text"]
    assert len(case["text"].encode()) == case["utf8_bytes"]


@cases("pieces.json")
def test_pieces_are_as_the_vector_says(case: dict[str, Any]) -> None:
    """Frames to envelopes and back, what is missing behind a lost one, or an error."""
    protobuf, as_json = ENCODINGS["protobuf"], ENCODINGS["json"]
    texts: dict[int, str] = {}
    reader = PieceReader(1, lambda stream_id: len(texts.get(stream_id, "").encode()))
    writer = FrameWriter(differences=True)
    writer.pieces = True
    for envelope in case["envelopes"]:
        payload = bytes.fromhex(envelope["protobuf"])
        if "error" in envelope:
            with pytest.raises(DecodeError):
                list(reader.frames(*protobuf.decode_server(payload)))  # type: ignore[arg-type]
            return
        read = [_whole(frame, texts) for frame in reader.frames(*protobuf.decode_server(payload))]  # type: ignore[arg-type]
        if "missing" in envelope:
            assert [each.stream_id for each in read if isinstance(each, Missing)] == envelope["missing"]
            continue
        frames = [frame for written in envelope["frames"] for frame in as_json.decode_server(written)]
        assert read == frames
        if "reads_only" not in case:
            draft = writer.draft(frames)  # type: ignore[arg-type]
            writer.commit(draft)
            assert protobuf.encode(draft.outgoing) == payload


def _whole(frame: Frame | CodedDelta | Missing, texts: dict[int, str]) -> Frame | Missing:
    """A frame with its text whole; notes the text."""
    if isinstance(frame, CodedDelta):
        numbers = {
            name: getattr(frame, name) for name in ("stream_id", "id", "epoch", "offset", "token_count")
        }
        frame = Delta(**numbers, text=apply_difference(frame.difference, ord(texts[frame.stream_id][-1])))
    if isinstance(frame, Delta):
        texts[frame.stream_id] = texts.get(frame.stream_id, "") + frame.text
    return frame


@cases("compression.json")
def test_compressed_messages_are_as_the_vector_says(case: dict[str, Any]) -> None:
    """Each message by itself, in order; or a close code."""
    decompressor = Decompressor(MAX_MESSAGE_BYTES)
    for message in case["messages"]:
        packed = bytes.fromhex(message["packed"])
        if message is case["messages"][-1] and "close" in case:
            with pytest.raises(RemoteProtocolError) as caught:
                decompressor.unpack(packed)
            assert caught.value.close_code == case["close"]
            return
        unpacked = decompressor.unpack(packed)
        if "message" in message:
            assert unpacked.hex() == message["message"]
        else:
            assert hashlib.sha256(unpacked).hexdigest() == message["sha256"]


@cases("heartbeat.json")
def test_heartbeat_is_as_the_vector_says(case: dict[str, Any]) -> None:
    """Three bytes and the number in them, or a ping of another kind."""
    payload = bytes.fromhex(case["payload"])
    if "error" in case:
        with pytest.raises(DecodeError):
            decode_heartbeat(payload)
        return
    assert encode_heartbeat(case["sequence"]) == payload
    assert decode_heartbeat(payload) == case["sequence"]


@cases("event_delta.json")
def test_packed_events_are_as_the_vector_says(case: dict[str, Any]) -> None:
    """Events to bytes and back, or an error."""
    packed = bytes.fromhex(case["packed"])
    if "error" in case:
        with pytest.raises(DecodeError):
            unpack_events(packed, MAX_EVENTS)
        return
    events = tuple(
        UserEvent(
            timestamp=int(event["timestamp"]),
            user_id=event["user_id"],
            action=event["action"],
            payload=bytes.fromhex(event["payload"]),
        )
        for event in case["events"]
    )
    assert unpack_events(packed, MAX_EVENTS) == events
    if not case.get("reads_only"):
        assert pack_events(events, compress=False) == packed


@frozen(kw_only=True)
class Numbers:
    """A frame as the apply rule sees it."""

    id: int
    epoch: int
    offset: int


@cases("cursor.json")
def test_cursor_judges_as_the_vector_says(case: dict[str, Any]) -> None:
    """Apply, drop or gap."""
    cursor = ReceiveCursor(case["epoch"], case["applied"], case["applied_bytes"])
    assert cursor.judge(Numbers(**case["frame"])).value == case["verdict"]


@cases("window.json")
def test_window_moves_as_the_vector_says(case: dict[str, Any]) -> None:
    """Size and frames in flight after each step."""
    window = SlidingWindow()
    for step in case["steps"]:
        if "sent" in step:
            window.on_sent(step["sent"], step["bytes"], step["at_ms"] / 1000)
        else:
            window.on_ack(step["ack"], step["at_ms"] / 1000)
        assert (window.size, window.in_flight) == (step["size"], step["in_flight"])


@cases("connection.json")
def test_connection_follows_the_vector(case: dict[str, Any]) -> None:
    """Either end, fed the other's messages and its own choices, says and sees exactly this."""
    ends = {role: Connection(role, case["subprotocol"]) for role in Role}
    text = ""
    if "before" in case:
        before = case["before"]
        for end in ends.values():
            end.know_streams(case["stream"])
        cursor = ReceiveCursor(1, before["applied"], before["applied_bytes"])
        digest = RunningDigest.of_unseen(bytes.fromhex(before["digest"]))
        ends[Role.CLIENT].know_position(case["stream"], cursor, digest)
    for message in case["messages"]:
        payload = payload_of(case["subprotocol"], message["payload"])
        sender = Role(message["from"])
        receiver = Role.SERVER if sender is Role.CLIENT else Role.CLIENT
        ends[receiver].receive_data(payload)
        events = []
        while (event := ends[receiver].next_event()) is not None:
            assert not isinstance(event, InvalidSubmit | Gap)
            events.append(event)
        assert ends[sender].send(*events) == payload
        text += "".join(event.text for event in events if isinstance(event, Delta))
    assert text == case["text"]
    assert {end.state for end in ends.values()} == {ConnectionState.CLOSED}
