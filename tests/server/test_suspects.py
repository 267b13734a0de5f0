"""Tests of `seedance_server.suspects`."""

from seedance_server.suspects import Suspects, Trial


def made(suspects: Suspects, attempts: int, told: list[int], name: int) -> Trial:
    return Trial(suspects, ("s", name), 1, attempts, lambda: told.append(name))


def found(suspects: Suspects, found_at: int | None, attempts: int = 0, name: int = 1) -> Trial:
    return Trial(suspects, ("s", name), found_at, attempts, lambda: None)


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
    assert not found(Suspects(), None).begin()


def test_process_is_counted_once_at_a_place_of_a_stream():
    """A stream that nobody reads leaves memory and comes back: no process has ended meanwhile."""
    suspects = Suspects()
    for found_at in (None, 3, 3):
        trial = found(suspects, found_at)
        assert not trial.begin()
        trial.leave(3)
    assert found(suspects, 4).begin(), "another process has got on with it"
    found(suspects, None).leave(None)
    assert found(suspects, 1).begin(), "it had ended: nothing is remembered"


def test_process_that_was_not_counted_yet_still_is_when_the_stream_comes_back():
    """It was found and left again before its turn in the engine came."""
    suspects = Suspects()
    found(suspects, 3).leave(3)
    trial = found(suspects, 3)
    assert trial.begin()
    trial.leave(3)
    assert not found(suspects, 3).begin()


def test_process_does_not_count_itself_among_those_that_ended():
    """With the one before, it would make a suspect of a stream that was only left for a while."""
    suspects = Suspects()
    suspect = found(suspects, 1, attempts=2, name=7)
    assert suspect.may_begin()
    trial = found(suspects, 5)
    trial.begin()
    trial.leave(5)
    assert found(suspects, 5, attempts=2).may_begin()
    assert not found(suspects, 5, attempts=3, name=2).may_begin()


def test_streams_that_left_are_remembered_up_to_a_bound():
    """The first to leave is forgotten first; it is counted once more than it need be."""
    suspects = Suspects(most_away=2)
    for name in range(3):
        found(suspects, None, name=name).leave(1)
    assert [found(suspects, 1, name=name).begin() for name in range(3)] == [True, False, False]
