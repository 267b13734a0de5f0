"""Tests of `seedance_sdk.cli.answer_view`."""

import io

import pytest
from rich.console import Console

from seedance_sdk.cli.answer_view import AnswerView
from seedance_sdk.cli.pace import Pace
from seedance_sdk.completion import Chunk
from seedance_sdk.errors import ConnectionLost
from seedance_sdk.reconnect import ReconnectDetails
from seedance_sdk.stream_events import Flow, FlowAction, Phase, Reconnected, Status, StreamEvent


def console() -> Console:
    return Console(file=io.StringIO(), width=60, height=12, force_terminal=True, color_system=None)


def drawn(screen: Console, view: AnswerView) -> list[str]:
    """What lives at the bottom of the screen just now."""
    with screen.capture() as captured:
        screen.print(view)
    return [line.rstrip() for line in captured.get().splitlines()]


def chunk(text: str) -> Chunk:
    return Chunk(delta=text, id=1, offset=0, token_count=1, received_at=1.0)


def test_view_lays_out_blocks_and_keeps_the_last_one_alive() -> None:
    """What is finished has left for good; what grows is drawn with the figures under it."""
    screen = console()
    view = AnswerView(screen, Pace(clock=lambda: 0.0))
    assert drawn(screen, view) == ["0 tokens · first - · asked"]
    with screen.capture() as captured:
        view.note(chunk("A **bold** word\n\nand th"))
    assert captured.get().rstrip() == "A bold word"
    assert drawn(screen, view) == ["and th", "1 tokens · first 1.0 s"]


def test_view_shows_the_end_of_a_block_that_is_longer_than_the_screen() -> None:
    """The newest line is what one reads; the whole block follows when it is finished."""
    screen = console()
    view = AnswerView(screen, Pace())
    view.note(chunk("```\n" + "".join(f"line {number}\n" for number in range(40))))
    lines = drawn(screen, view)
    assert len(lines) <= 12
    assert "line 39" in "".join(lines)
    assert "line 0" not in "".join(lines)


DETAILS = ReconnectDetails(
    attempt=1, wait_for_s=0.1, waited_so_far_s=0.0, caused_by=ConnectionLost("gone"), streams=1
)


@pytest.mark.parametrize(
    ("event", "state"),
    [
        (Status(stream_id=1, phase=Phase.QUEUED, position=2), "in line, place 3"),
        (
            Status(stream_id=1, phase=Phase.PREFILL, tokens_done=5, tokens_total=9),
            "reading the prompt 5 of 9",
        ),
        (Status(stream_id=1, phase=Phase.PREFILL), "reading the prompt"),
        (Flow(stream_id=1, action=FlowAction.PAUSE, window=16), "the server waits for this terminal"),
        (DETAILS, "waiting for the server"),
    ],
)
def test_view_says_why_there_is_no_text(event: StreamEvent, state: str) -> None:
    """Waiting is explained where one looks; text takes the words away."""
    screen = console()
    view = AnswerView(screen, Pace(clock=lambda: 0.0))
    view.tell(event)
    assert drawn(screen, view)[-1].endswith(f" · {state}")
    view.note(chunk("x"))
    assert state not in drawn(screen, view)[-1]


def test_view_says_what_its_caller_waits_for() -> None:
    """Such as the end of an answer that was given up."""
    screen = console()
    view = AnswerView(screen, Pace(clock=lambda: 0.0))
    view.say("stopping")
    view.tell(DETAILS)
    assert drawn(screen, view)[-1].endswith(" · stopping")


def test_view_tells_an_outage_in_two_lines_however_many_attempts_it_takes() -> None:
    """Lost, and back; the attempts between are nobody's business."""
    screen = console()
    view = AnswerView(screen, Pace())
    with screen.capture() as captured:
        for attempt in (1, 2, 3):
            view.tell(
                ReconnectDetails(
                    attempt=attempt,
                    wait_for_s=0.1,
                    waited_so_far_s=1.0,
                    caused_by=ConnectionLost("gone"),
                    streams=1,
                )
            )
        view.tell(Reconnected(reconnects=1, outage_s=2.5))
    lines = captured.get().splitlines()
    assert [line[:22] for line in lines if line.startswith("──")] == [
        "── connection lost (go",
        "── connected again aft",
    ]
    assert "2.5 s" in captured.get()


def test_view_hides_no_address_behind_a_link() -> None:
    """A model that quotes somebody else's text must not lead anybody where he doesn't see."""
    screen = console()
    view = AnswerView(screen, Pace())
    with screen.capture() as captured:
        view.note(chunk("[your bank](https://evil.example)\n\n"))
    assert captured.get().rstrip() == "your bank (https://evil.example)"


def test_view_leaves_nothing_that_was_only_for_the_time_being() -> None:
    """The figures under the answer go; its caller says what stays."""
    screen = console()
    with AnswerView(screen, Pace()) as view:
        view.note(chunk("the end"))
    written = screen.file.getvalue()  # type: ignore[attr-defined]
    assert written.rstrip().endswith("the end")
