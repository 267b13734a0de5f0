"""Tests of `seedance_sdk.cli.chat`; in a real terminal it is tested in `tests/e2e/test_command.py`."""

from seedance_sdk.cli.chat import run
from seedance_sdk.cli.command import build_parser
from seedance_sdk.testing import Answer, Cut, ErrorCode, Refusal, ScriptedServer
from tests.sdk.cli.terminal import Lines, Terminal


def talk(server: ScriptedServer, *lines: str | type[BaseException], flags: tuple[str, ...] = ()) -> Terminal:
    """Types the lines, and leaves."""
    terminal = Terminal(server)
    given = build_parser().parse_args(["chat", *flags])
    assert run(given, terminal.context, Lines(*lines)) == 0
    return terminal


def test_chat_answers_a_message_of_the_command_line_and_leaves() -> None:
    """Exactly the answer and a line break."""
    server = ScriptedServer(Answer("it ", "scatters"))
    terminal = Terminal(server)
    assert terminal.run("chat", "Why is the sky blue?", "--system", "be short") == 0
    assert (terminal.out, terminal.err) == ("it scatters\n", "")
    assert [(turn.role, turn.content) for turn in server.requests[0].messages] == [
        ("system", "be short"),
        ("user", "Why is the sky blue?"),
    ]


def test_chat_answers_what_is_piped_in() -> None:
    """A file is one message."""
    server = ScriptedServer(Answer("ok"))
    terminal = Terminal(server, stdin="line one\nline two\n")
    assert terminal.run("chat") == 0
    assert server.requests[0].messages[0].content == "line one\nline two\n"


def test_chat_goes_on_from_turn_to_turn() -> None:
    """The second line continues the first, with its figures under each answer."""
    server = ScriptedServer(Answer("**one**"), Answer("two"))
    terminal = talk(server, "first", "second")
    assert server.requests[1].continues is not None
    assert [turn.content for turn in server.requests[1].messages] == ["second"]
    assert "one" in terminal.lines
    assert sum("tokens · first" in line for line in terminal.lines) == 2


def test_chat_says_that_the_connection_was_lost_and_is_back() -> None:
    """And the answer goes on, each piece once."""
    terminal = talk(ScriptedServer(Answer("before ", Cut(), "after", delay_s=0.05)), "hi")
    assert "before after" in terminal.lines
    [lost] = [line for line in terminal.lines if "connection lost" in line]
    [back] = [line for line in terminal.lines if "connected again" in line]
    assert terminal.lines.index(lost) < terminal.lines.index(back)


def test_chat_survives_what_goes_wrong_with_one_line() -> None:
    """A refusal is told, and the next line is asked as ever."""
    server = ScriptedServer(Refusal(ErrorCode.TEMPLATE_ERROR, "not so"), Answer("fine"))
    terminal = talk(server, "a", KeyboardInterrupt, "/nonsense", "b")
    assert "not so" in terminal.lines
    assert "there is no /nonsense; /help lists what there is" in terminal.lines
    assert "fine" in terminal.lines


def test_chat_commands_change_what_follows() -> None:
    """Settings hold for the next line; another system prompt begins another conversation."""
    server = ScriptedServer(Answer("a"), Answer("b"), Answer("c"))
    lines = (
        "/set temperature=0.5",
        "/set seed=7",
        "/settings",
        "one",
        "/set seed=",
        "/system be kind",
        "two",
    )
    terminal = talk(server, *lines, "/new", "three", "/quit", "never")
    first, second, third = server.requests
    assert (first.sampling.temperature, first.sampling.seed) == (0.5, 7)
    assert (second.sampling.temperature, second.sampling.seed) == (0.5, None)
    assert [turn.content for turn in second.messages] == ["be kind", "two"]
    assert [turn.content for turn in third.messages] == ["be kind", "three"]
    assert "seed: 7" in terminal.lines


def test_chat_takes_what_a_model_says_as_text() -> None:
    """No escape sequence of its reaches the terminal."""
    terminal = talk(ScriptedServer(Answer("a\x1b[2Jb")), "hi")
    assert "\x1b" not in terminal.out
    assert "a�[2Jb" in terminal.lines
