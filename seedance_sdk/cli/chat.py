"""``seedance chat``: a conversation in the terminal.

Ctrl-C ends the answer and not the program: the server is asked to stop, what came stays said. A second one
stops waiting for it. A lost connection or a restarted server is told in a line, and the answer goes on.
"""

from __future__ import annotations

import argparse
import os
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, Protocol, cast

from prompt_toolkit import PromptSession
from prompt_toolkit.history import FileHistory

from seedance_sdk.blocking import Conversation, SeedanceClient, Stream
from seedance_sdk.cli.answer_view import AnswerView
from seedance_sdk.cli.arguments import add_sampling, add_server, parse_option, sampling_of
from seedance_sdk.cli.context import Context, printable
from seedance_sdk.cli.pace import Pace
from seedance_sdk.errors import ClientClosed, SeedanceError
from seedance_sdk.options import Options

__all__ = ["LineReader", "add_command", "run"]

_HELP = """\
/new               begin another conversation
/system TEXT       the same, with this system prompt
/set NAME=VALUE    temperature, max_tokens, seed …; nothing after = leaves it to the server
/settings          what is set
/quit              leave; so does Ctrl-D
Alt-Enter begins a line, Ctrl-C ends an answer, arrows bring back what you said"""


class LineReader(Protocol):
    """Where lines come from."""

    def prompt(self, message: str) -> str:
        """Returns the next one.

        Raises:
            EOFError: There is no more.
            KeyboardInterrupt: The line was given up.
        """


def add_command(commands: Any) -> None:
    """Adds the command to the parser's."""
    parser = commands.add_parser(
        "chat",
        help="talk",
        description="A conversation; /help lists what can be typed beside words. With a message, or with "
        "stdin piped in, there is one answer.",
        allow_abbrev=False,
    )
    parser.add_argument("message", nargs="?", help="say this, write the answer, and leave")
    parser.add_argument("--system", metavar="TEXT", help="what the model is told beforehand")
    add_server(parser)
    add_sampling(parser)
    parser.set_defaults(run=run)


def run(given: argparse.Namespace, context: Context, reader: LineReader | None = None) -> int:
    """Runs it.

    Args:
        given: The arguments.
        context: Terminal and network.
        reader: Where lines come from; None for the terminal.
    """
    options = sampling_of(given)
    with context.client(given.url, given.api_key) as client:
        message = given.message
        if message is None and reader is None and not context.stdin.isatty():
            message = context.stdin.read()
        if message is not None:
            _answer_once(client.conversation(system=given.system, **options), message, context)
            return 0
        _Chat(client, context, reader or _line_reader(os.environ), given.system, options).run()
    return 0


def _answer_once(conversation: Conversation, message: str, context: Context) -> None:
    with conversation.say(message, stream=True) as stream:
        for chunk in stream:
            context.write(chunk.delta)
    context.write("\n")


def _line_reader(environment: Mapping[str, str]) -> LineReader:
    """A line editor with a history that outlives the program."""
    state = Path(environment.get("XDG_STATE_HOME") or "~/.local/state").expanduser() / "seedance"
    history = None
    with suppress(OSError):
        state.mkdir(parents=True, exist_ok=True)
        path = state / "chat-history"
        path.touch(mode=0o600)
        history = FileHistory(str(path))
    session: PromptSession[str] = PromptSession(history=history, enable_history_search=True)
    return cast("LineReader", session)


class _Chat:
    """The loop: a line, then an answer or a command."""

    def __init__(
        self,
        client: SeedanceClient,
        context: Context,
        reader: LineReader,
        system: str | None,
        options: Options,
    ) -> None:
        self._client = client
        self._context = context
        self._reader = reader
        self._system = system
        self._options: dict[str, Any] = {**options}
        self._conversation = self._begin()

    def _begin(self) -> Conversation:
        return self._client.conversation(system=self._system, **cast("Options", self._options))

    def run(self) -> None:
        self._say("/help lists commands, Ctrl-D leaves")
        while True:
            try:
                line = self._reader.prompt("> ").strip()
            except EOFError:
                return
            except KeyboardInterrupt:  # of a line that was begun
                continue
            if line in {"/quit", "/exit"}:
                return
            try:
                if line.startswith("/"):
                    self._command(line)
                elif line:
                    self._answer(line)
            except (SeedanceError, ValueError) as error:
                self._say(str(error), style="red")

    def _command(self, line: str) -> None:
        name, _, rest = line.partition(" ")
        if name == "/help":
            self._say(_HELP)
        elif name == "/new":
            self._conversation = self._begin()
            self._say("another conversation begins")
        elif name == "/system":
            self._system = rest.strip() or None
            self._conversation = self._begin()
            self._say("another conversation begins")
        elif name == "/set":
            option, value = parse_option(rest)
            self._options[option] = value
            self._say(f"{option}: {'as the server has it' if value is None else value}")
        elif name == "/settings":
            chosen = {name: value for name, value in self._options.items() if value is not None}
            self._say("\n".join(f"{name}: {value}" for name, value in chosen.items()) or "nothing is set")
        else:
            raise ValueError(f"there is no {name}; /help lists what there is")

    def _answer(self, line: str) -> None:
        pace = Pace()
        stream = self._conversation.say(line, stream=True, **cast("Options", self._options))
        with (
            stream,
            AnswerView(self._context.out, pace) as view,
            _told(stream, view),
            _interruptible(stream, view),
        ):
            for chunk in stream:
                view.note(chunk)
        self._say(pace.line())

    def _say(self, words: str, *, style: str = "dim") -> None:
        self._context.out.print(printable(words), style=style, markup=False, soft_wrap=True)


@contextmanager
def _interruptible(stream: Stream, view: AnswerView) -> Iterator[None]:
    """The first Ctrl-C asks the server to end the answer; the next ones are as always."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)

    def on_interrupt(_number: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, before)
        stream.cancel()
        view.say("stopping; Ctrl-C again doesn't wait for it")

    signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield
    except KeyboardInterrupt:  # the second: what the server has not said yet is not waited for
        pass
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _told(stream: Stream, view: AnswerView) -> Iterator[None]:
    """Shows what happens to a stream beside its text, for as long as it is read."""

    def tell() -> None:
        with suppress(ClientClosed):
            for event in stream.events():
                view.tell(event)

    teller = threading.Thread(target=tell, name="seedance-events", daemon=True)
    teller.start()
    try:
        yield
    finally:
        stream.close()  # ends the events too
        teller.join(1.0)
