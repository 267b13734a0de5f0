from seedance_server.engine.progress import silent


def test_silent_listens_and_says_nothing(capfd):
    """Whoever loads a model in a program of its own has a terminal of its own."""
    silent("loading")
    silent("loading", 0.5)
    assert capfd.readouterr() == ("", "")
