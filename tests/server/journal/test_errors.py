"""The tree of errors in the docstring is the tree of errors."""

from __future__ import annotations

import pickle

from seedance_server.journal import errors


def test_docstring_shows_every_error_below_its_parent():
    """Who reads the tree decides what to catch."""
    lines = (errors.__doc__ or "").splitlines()
    depths = {
        line.strip("│├└─ ").split(" ")[0]: len(line) - len(line.lstrip("│├└─ ")) for line in lines if line
    }
    for name in errors.__all__:
        error = getattr(errors, name)
        assert name in depths
        if name != "JournalError":
            assert depths[name] == depths[error.__mro__[1].__name__] + 4


def test_errors_say_what_is_known():
    """What a peer has to answer is in attributes, not in text."""
    expired = errors.StreamExpired(3, 8, 7)
    assert isinstance(expired, errors.StreamTruncated)
    assert (expired.stream_id, expired.first_available_id, expired.last_id) == (3, 8, 7)
    assert "nothing was written" in str(errors.JournalFailed("x", unknown=False))
    assert "may or may not" in str(errors.JournalFailed("x", unknown=True))
    assert pickle.dumps(errors.SessionNotFound())
