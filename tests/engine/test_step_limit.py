from seedance_server.engine.step_limit import StepLimit


def test_step_limit_halves_the_step_that_failed_not_the_bound():
    """A step of 6 rows was too large: 64 is out of the question, whatever the bound was."""
    limit = StepLimit(128, 256)
    assert limit.halve(6, 40)
    assert (limit.rows, limit.tokens) == (3, 20)
    assert limit.halve(1, 20)
    assert (limit.rows, limit.tokens) == (1, 10)


def test_step_limit_says_when_nothing_smaller_is_left():
    """A single row that doesn't fit is the end: retrying for ever would hide it."""
    limit = StepLimit(128, 256)
    assert not limit.halve(1, 1)
    assert limit.failures == 1


def test_step_limit_grows_back_when_steps_go_well():
    """What was short for a moment must not make the server slow for ever."""
    limit = StepLimit(8, 256)
    limit.halve(8, 8)
    for _ in range(255):
        limit.note_success()
    assert (limit.rows, limit.tokens) == (4, 4)
    for _ in range(10 * 256):
        limit.note_success()
    assert (limit.rows, limit.tokens) == (8, 256)
