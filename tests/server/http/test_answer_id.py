"""Tests of `seedance_server.http.answer_id`."""

from seedance_server.http.answer_id import AnswerId, Kind


def test_answer_id_is_the_same_for_the_same_request_only() -> None:
    """One name for each tenant, key and shape; without a key never the same again."""
    names = [
        AnswerId.of(kind, tenant, key).name
        for kind in Kind
        for tenant in ("alice", "bob")
        for key in ("one", "two", None, None)
    ]
    assert len(set(names)) == len(names)
    assert AnswerId.of(Kind.CHAT, "alice", "one").name == names[0]
    assert names[0].startswith("chatcmpl-")


def test_answer_id_is_read_back_or_is_none() -> None:
    """What isn't one of our names can't name another session."""
    answer = AnswerId.of(Kind.TEXT, "alice", "one")
    assert AnswerId.parse(answer.name) == answer
    for text in ("", "cmpl-", answer.name.upper(), answer.name + "0", "x" + answer.name, answer.name + "\n"):
        assert AnswerId.parse(text) is None


def test_answer_id_gives_each_choice_a_key_of_its_own() -> None:
    """32 bytes, as a SUBMIT may have."""
    answer = AnswerId.of(Kind.TEXT, "alice", "one")
    keys = {answer.key_of(index) for index in range(20)}
    assert len(keys) == 20
    assert {len(key) for key in keys} == {32}
    assert answer.token not in keys
