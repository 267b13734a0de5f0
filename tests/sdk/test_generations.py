"""Where each generation of a session is: its place, its answer, its frames, and every end."""

from __future__ import annotations

import pytest
import trio

from seedance_sdk.errors import ClientClosed, ConnectionLost, Overloaded, RequestTooLarge
from seedance_sdk.generation import Generation
from seedance_sdk.generations import Generations
from seedance_sdk.limits import Limits
from seedance_sdk.patience import Patience
from seedance_wire.bookmark import Bookmark
from seedance_wire.client_session import StreamLost
from seedance_wire.messages import Accepted, Durability, ErrorCode, Flow, FlowAction, Refused, Resumed
from seedance_wire.running_digest import RunningDigest
from tests.sdk.hand_server import FOREVER, asked, delta, final, unheard


class Owner:
    """Takes what generations ask of a session."""

    def request_cancel(self, generation: Generation) -> None:
        generation.cancel_requested = True

    def note_processed(self, stream_id: int, frame_id: int) -> None:
        pass

    def make_bookmark(
        self, stream_id: int, *, last_processed_id: int, offset: int, digest: RunningDigest
    ) -> Bookmark:
        raise AssertionError("nothing here asks for a bookmark")


class Counter:
    """Counts the generations that leave."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


async def asking(generations: Generations, number: int, prompt: str = "x") -> Generation:
    generation = Generation(
        asked(prompt), FOREVER, Owner(), Limits(), trio.current_time, unheard(), Patience()
    )
    generations.places.total_tokens = 8
    await generations.places.acquire_on_behalf_of(generation)
    generations.begin(generation)
    generations.ask(generation, lambda: number)
    return generation


def accepted(number: int, stream_id: int, *, replayed: bool = False) -> Accepted:
    return Accepted(
        sequence_id=number, stream_id=stream_id, durability=Durability.COMMITTED, replayed=replayed
    )


async def test_generation_goes_from_its_request_to_its_last_frame_and_frees_its_place() -> None:
    """Live until the last frame, then neither kept nor counted."""
    left = Counter()
    generations = Generations(left)
    generation = await asking(generations, 1)
    assert generations.handle(accepted(1, 7), "s")
    assert (generation.stream_id, generation.session_id, len(generations)) == (7, "s", 1)
    assert generations.handle(delta(7, 1, "a", 0), "s")
    assert list(generations.uncancelled()) == [7]
    assert generations.handle(final(7, 2, "a"), "s")
    assert (len(generations), left.count, generations.places.borrowed_tokens) == (0, 1, 0)
    assert list(generations.uncancelled()) == []


async def test_generation_that_is_only_known_again_is_no_progress() -> None:
    """What a server says before it fails at a stream each time must not shorten the waits."""
    generations = Generations(Counter())
    await asking(generations, 1)
    assert not generations.handle(accepted(1, 7, replayed=True), "s")
    resumed = Resumed(stream_id=7, next_id=1, epoch=1, first_available_id=1, last_id=0, live=True)
    assert not generations.handle(resumed, "s")
    assert not generations.handle(Flow(stream_id=7, action=FlowAction.RUN, window=16), "s")


async def test_generation_refused_or_lost_ends_alone() -> None:
    """Each end has its own error, and the neighbours go on."""
    generations = Generations(Counter())
    refused, lost, sound = [await asking(generations, number) for number in (1, 2, 3)]
    generations.handle(Refused(sequence_id=1, code=ErrorCode.OVERLOADED, message="full"), "s")
    generations.lose(StreamLost(sequence_id=2, failure=None), None)
    with pytest.raises(Overloaded):
        refused.raise_if_refused()
    with pytest.raises(ConnectionLost):
        lost.raise_if_refused()
    assert not sound.ended
    assert len(generations) == 1


async def test_generation_that_is_shed_is_the_longest_request_without_an_answer() -> None:
    """One request was too large: it is not a small one, nor one that the server has taken."""
    generations = Generations(Counter())
    taken, small, large = [
        await asking(generations, number, "x" * size) for number, size in ((1, 900), (2, 1), (3, 500))
    ]
    generations.handle(accepted(1, 1), "s")
    assert generations.shed(RequestTooLarge("too large")) == 3
    assert (taken.ended, small.ended, large.ended) == (False, False, True)
    assert generations.shed(RequestTooLarge("too large")) == 2
    assert generations.shed(RequestTooLarge("too large")) is None


async def test_generations_all_end_with_their_session() -> None:
    """Whoever waits for a place is woken too."""
    generations = Generations(Counter())
    live = await asking(generations, 1)
    generations.fail(ClientClosed("over"))
    with pytest.raises(ClientClosed):
        live.raise_if_refused()
    assert len(generations) == 0
    assert generations.places.total_tokens == float("inf")
