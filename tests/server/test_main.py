"""Tests of `seedance_server.__main__`."""

import gc

import pytest
import structlog

import seedance_server.__main__ as command
from seedance_server.engine.errors import ModelNotFound
from seedance_server.errors import EngineStopped
from seedance_server.shutdown import ENGINE_FAILED_STATUS


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "--model-path is needed"),
        (["--model-path", "m", "--port", "x"], "--port must be a whole number"),
        (["--model-path", "m", "--nonsense"], "unrecognized arguments: --nonsense"),
        (["--model-path", "m", "--host", "0.0.0.0"], "--api-key or --keys is needed"),
    ],
)
def test_main_answers_a_wrong_setting_with_one_line_and_exit_2(arguments, words, capsys, monkeypatch) -> None:
    """What the operator got wrong is one clear line on stderr, no usage, no traceback."""
    monkeypatch.delenv("SEEDANCE_MODEL_PATH", raising=False)
    assert command.main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("seedance-server: error: ")
    assert words in err
    assert err.count("\n") == 1


def test_main_answers_a_model_that_is_not_there_with_one_line(capsys, monkeypatch) -> None:
    """A hostile path can't make two lines of it."""

    def fail(_config, _progress):
        raise ModelNotFound("a\nb\x1b[2J", "nothing there")

    monkeypatch.setattr(command, "load_served_model", fail)
    assert command.main(["--model-path", "a", "--port", "0"]) == 2
    err = capsys.readouterr().err
    assert err == "seedance-server: error: no model at a\\nb\\x1b[2J: nothing there\n"
    structlog.reset_defaults()


@pytest.mark.parametrize("flag", ["--help", "--version"])
def test_main_explains_itself(flag, capsys) -> None:
    """Help and version are for people and end well."""
    with pytest.raises(SystemExit) as caught:
        command.main([flag])
    assert caught.value.code == 0
    assert "seedance-server" in capsys.readouterr().out


def test_main_ends_the_process_itself_once_it_has_served(monkeypatch, capsys) -> None:
    """A model is freed by the system at once, not by the interpreter in seconds."""
    left = []
    monkeypatch.setattr(command.trio, "run", lambda _serve: None)
    monkeypatch.setattr(command.os, "_exit", left.append)
    command.main(["--model-path", "m"])
    structlog.reset_defaults()
    assert left == [0]


def test_main_ends_with_3_when_the_engine_failed(monkeypatch, capsys) -> None:
    """Whoever watches the process tells it from a bad setting, which no restart mends."""

    def run(_serve):
        raise EngineStopped("DeviceFailed: an illegal memory access")

    left = []
    monkeypatch.setattr(command.trio, "run", run)
    monkeypatch.setattr(command.os, "_exit", left.append)
    command.main(["--model-path", "m"])
    structlog.reset_defaults()
    assert left == [ENGINE_FAILED_STATUS]
    assert "illegal memory access" in capsys.readouterr().err


def test_main_spares_the_collector_what_was_loaded(monkeypatch, capsys) -> None:
    """A full collection beside a model would hold up every stream for a third of a second."""
    loaded = object()
    monkeypatch.setattr(command, "load_served_model", lambda _config, _progress: loaded)
    monkeypatch.setattr(command.trio, "run", lambda serve: left.append(serve.args[-1](None, None)))
    left: list[object] = []
    monkeypatch.setattr(command.os, "_exit", left.append)
    threshold = gc.get_threshold()
    try:
        command.main(["--model-path", "m"])
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()
        gc.set_threshold(*threshold)
        structlog.reset_defaults()
    assert left == [loaded, 0]
