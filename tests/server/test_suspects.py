"""Tests of `seedance_server.suspects`."""

from seedance_server.suspects import Suspects, Trial


def made(suspects: Suspects, attempts: int, told: list[int], name: int) -> Trial:
    return Trial(suspects, attempts, lambda: told.append(name), is_due=True)


def test_one_suspect_at_a_time_may_begin_and_those_that_wait_are_told():
    """Whoever has got on, or stepped aside, makes room; all that wait ask again."""
    suspects, told = Suspects(), []
    first, second, third = (made(suspects, 2, told, name) for name in range(3))
    assert (first.may_begin(), second.may_begin(), third.may_begin()) == (True, False, False)
    assert first.may_begin()
    first.step_aside()
    assert told == [1, 2]
    assert (third.may_begin(), second.may_begin(), first.may_begin()) == (True, False, False)
    second.end()
    third.end()
    third.end()
    assert told == [1, 2, 0]  # the second wants nothing any more
    assert (first.may_begin(), second.may_begin(), third.may_begin()) == (True, True, True)


def test_streams_that_got_on_since_wait_for_nobody():
    """One process that ended with a stream makes no suspect of it."""
    suspects, told = Suspects(), []
    suspect, other = made(suspects, 3, told, 0), made(suspects, 0, told, 1)
    assert suspect.may_begin()
    assert other.may_begin()
    other.end()
    assert not made(suspects, 2, told, 2).may_begin()


def test_first_turn_of_what_another_process_left_is_counted_once():
    """It comes back into the engine of this process as often as it likes."""
    trial = made(Suspects(), 0, [], 0)
    assert [trial.begin(), trial.begin()] == [True, False]
    assert not Trial(Suspects(), 0, lambda: None, is_due=False).begin()
