"""Tests of `seedance_server.errors`."""

import inspect

import seedance_server.errors as errors_module


def test_errors_docstring_names_every_error() -> None:
    """The tree in the docstring is the package's list of errors."""
    for name in errors_module.__all__:
        assert f"{name} " in errors_module.__doc__ or f"{name}\n" in errors_module.__doc__, name


def test_errors_say_one_line() -> None:
    """What an operator or a client reads is one line."""
    assert str(errors_module.ConfigError("--port", "must be a number")) == "--port must be a number"
    assert (
        str(errors_module.ListenError("::1", 80, "the port is in use"))
        == "can't listen on ::1 port 80: the port is in use"
    )
    assert all(
        issubclass(member, errors_module.ServerError)
        for _, member in inspect.getmembers(errors_module, inspect.isclass)
        if member.__module__ == errors_module.__name__
    )
