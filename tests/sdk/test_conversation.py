"""The faces of a conversation; what it does is tested in `test_dialogue` and on every face in `test_face`."""

from __future__ import annotations

from seedance_sdk.blocking import Conversation, SeedanceClient
from seedance_sdk.client import AsyncSeedanceClient
from seedance_sdk.conversation import AsyncConversation, ConversationFace
from seedance_sdk.testing import Answer, ScriptedServer


def test_faces_of_a_conversation_have_the_same_names() -> None:
    """Whoever knows one knows the other."""
    names = [
        {name for name in dir(face) if not name.startswith("_")} for face in (Conversation, AsyncConversation)
    ]
    assert names[0] == names[1]
    assert issubclass(Conversation, ConversationFace)


async def test_repr_says_how_long_it_is_and_nothing_of_what_was_said() -> None:
    """For debugging."""
    async with AsyncSeedanceClient(connector=ScriptedServer(Answer("secret"))) as client:
        conversation = client.conversation()
        await conversation.say("a secret")
        assert repr(conversation) == "<AsyncConversation: 2 messages>"


def test_conversation_can_be_read_after_its_client_was_closed() -> None:
    """What was said is the caller's to store."""
    with SeedanceClient(connector=ScriptedServer(Answer("a"))) as client:
        conversation = client.conversation(system="s")
        conversation.say("1")
    assert [message["content"] for message in conversation.messages] == ["s", "1", "a"]
    assert conversation.resends == 0
