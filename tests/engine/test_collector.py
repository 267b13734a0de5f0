"""The garbage collector's pause while a model is loaded."""

import gc

import pytest

from seedance_server.engine.collector import paused_collector


def test_collector_rests_inside_and_works_after():
    """Loading is what it rests for: a server without it would grow for ever."""
    assert gc.isenabled()
    with paused_collector():
        assert not gc.isenabled()
    assert gc.isenabled()


def test_collector_works_again_after_a_failure():
    """A model that can't be loaded changes nothing for whoever tried."""
    with pytest.raises(ValueError, match="broken"), paused_collector():
        raise ValueError("broken")
    assert gc.isenabled()


def test_collector_stays_off_where_it_was_off():
    """The pause takes back no decision of somebody else."""
    gc.disable()
    try:
        with paused_collector():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
