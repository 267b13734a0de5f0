"""A server's messages in protobuf."""

import pytest

from seedance_wire import seedance_pb2 as pb
from seedance_wire.envelope import MAX_FRAMES
from seedance_wire.errors import DecodeError
from seedance_wire.messages import Bye, Delta
from seedance_wire.protobuf_server import server_envelope, server_messages


def frame(**fields: object) -> pb.Frame:
    """A frame with sound numbering."""
    return pb.Frame(stream_id=1, id=1, epoch=1, **fields)  # type: ignore[arg-type]


def test_delta_of_one_token_does_not_say_so() -> None:
    """The usual case costs no byte; its absence means one."""
    one = Delta(stream_id=1, id=1, epoch=1, offset=0, text="a")
    assert not server_envelope((one,)).frame.HasField("token_count")
    assert server_messages(server_envelope((one,))) == (one,)


@pytest.mark.parametrize(
    "envelope",
    [
        pb.ServerEnvelope(),
        pb.ServerEnvelope(frame=frame(text="a")),
        pb.ServerEnvelope(frame=frame(type=9, text="a")),
        pb.ServerEnvelope(frame=frame(type=pb.FRAME_TYPE_DELTA)),
        pb.ServerEnvelope(frame=frame(type=pb.FRAME_TYPE_FLUSH, final=pb.Final(digest=b"d" * 32))),
        pb.ServerEnvelope(frame=frame(type=pb.FRAME_TYPE_FLUSH, final=pb.Final(finish_reason=1))),  # type: ignore[arg-type]
        pb.ServerEnvelope(frame=frame(type=pb.FRAME_TYPE_ERROR)),
        pb.ServerEnvelope(frame=pb.Frame(type=pb.FRAME_TYPE_FLUSH)),
        pb.ServerEnvelope(frames=pb.FrameBatch()),
        pb.ServerEnvelope(frames=pb.FrameBatch(frames=[pb.Frame()] * (MAX_FRAMES + 1))),
        pb.ServerEnvelope(frames=pb.FrameBatch(frames=[frame(type=pb.FRAME_TYPE_FLUSH), pb.Frame()])),
        pb.ServerEnvelope(
            frame=frame(type=pb.FRAME_TYPE_DELTA, text="a", logprobs=[pb.TokenLogprob()] * 16_385)
        ),
        pb.ServerEnvelope(
            frames=pb.FrameBatch(
                frames=[
                    frame(
                        type=pb.FRAME_TYPE_DELTA,
                        text="a",
                        logprobs=[pb.TokenLogprob(top=[pb.Alternative()] * 8192)],
                    )
                ]
                * 2
            )
        ),
        pb.ServerEnvelope(accepted=pb.Accepted(sequence_id=1, stream_id=1)),
        pb.ServerEnvelope(refused=pb.Refused(sequence_id=1)),
        pb.ServerEnvelope(welcome=pb.Welcome()),
    ],
)
def test_server_messages_refuses_what_no_server_sends(envelope: pb.ServerEnvelope) -> None:
    """Missing data, unknown enum values and numbers out of range are errors, not defaults."""
    with pytest.raises(DecodeError):
        server_messages(envelope)


def test_server_envelope_is_not_for_a_clients_messages() -> None:
    """The two directions have envelopes of their own."""
    with pytest.raises(TypeError):
        server_envelope((Bye(),))
