"""What may share an envelope."""

import pytest

from seedance_wire.envelope import MAX_FRAMES, CodedDelta, check_envelope
from seedance_wire.errors import LocalProtocolError
from seedance_wire.messages import Ack, Bye, Delta, Flush

DELTA = Delta(stream_id=1, id=1, epoch=1, offset=0, text="a")
CODED = CodedDelta(stream_id=1, id=2, epoch=1, offset=1, difference=b"\x02")
FLUSH = Flush(stream_id=1, id=3, epoch=1, offset=2)


@pytest.mark.parametrize("messages", [(Bye(),), (DELTA,), (DELTA, CODED, FLUSH), (FLUSH,) * MAX_FRAMES])
def test_check_envelope_allows_one_message_or_many_frames(messages: tuple[object, ...]) -> None:
    """A batch is there for frames, which are many and small."""
    check_envelope(messages)


@pytest.mark.parametrize(
    "messages", [(), (Bye(), Bye()), (DELTA, Ack(processed=((1, 1),))), (FLUSH,) * (MAX_FRAMES + 1)]
)
def test_check_envelope_refuses_everything_else(messages: tuple[object, ...]) -> None:
    """The other end would refuse it, so sending it is our bug."""
    with pytest.raises(LocalProtocolError):
        check_envelope(messages)
