"""Tests of `seedance_server.settings_file`."""

from pathlib import Path

import pytest

from seedance_server.errors import SettingsFileError
from seedance_server.setting import Setting
from seedance_server.settings_file import find_settings_file, likely_meant, read_settings_file, search_path


def setting(flag: str, **more: object) -> Setting:
    return Setting(help="h", parse=str, flag=flag, metavar="X", group="g", **more)


KNOWN = {
    "port": setting("--port"),
    "limit_s": setting("--time-limit"),
    "origins": setting("--allow-origin", repeatable=True),
    "reuse": setting("--reuse", choices=("on", "off")),
}


def read(tmp_path: Path, text: str | bytes) -> dict[str, str | list[str]]:
    path = tmp_path / "f.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_settings_file(path, KNOWN)


def test_a_file_gives_the_text_that_a_flag_would_have(tmp_path: Path) -> None:
    """Numbers may be numbers and switches true or false; what they mean is for the setting to say."""
    text = 'port = 80\ntime-limit = 2.5\nallow-origin = ["a", "b"]\nreuse = false\n'
    assert read(tmp_path, text) == {
        "port": "80",
        "limit_s": "2.5",
        "origins": ["a", "b"],
        "reuse": "off",
    }
    assert read(tmp_path, "") == {}
    assert read_settings_file(Path("/dev/null"), KNOWN) == {}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("prot = 1", "has the unknown key 'prot'; did you mean port?"),
        ("time_limit = 1", "has the unknown key 'time_limit'; did you mean time-limit?"),
        ("zzz = 1", "has the unknown key 'zzz'"),
        ("[port]\nx = 1", "has a wrong value: port must be one value"),
        ("port = [1]", "has a wrong value: port must be one value"),
        ("port = 2020-01-01", "has a wrong value: port must be one value"),
        ("port = true", "has a wrong value: port can't be true or false"),
        ('allow-origin = "a"', "has a wrong value: allow-origin must be a list of strings"),
        ("allow-origin = [1]", "has a wrong value: allow-origin must be a list of strings"),
        ("port", "isn't TOML: "),
        ("port = 1\nport = 2", "isn't TOML: "),
        (b"port = '\xff'", "isn't TOML: "),
        (b"#" * (1 << 21), "is larger than"),
    ],
)
def test_a_file_that_cannot_be_meant_is_refused_by_name(tmp_path: Path, text: str, words: str) -> None:
    """Nothing in it is ever ignored."""
    with pytest.raises(SettingsFileError) as caught:
        read(tmp_path, text)
    assert str(caught.value).startswith(f"settings file {tmp_path}/f.toml {words}")


def test_a_named_file_must_be_there_and_a_searched_one_need_not(tmp_path: Path) -> None:
    """The user's own comes before the machine's; the first that is there is the only one."""
    with pytest.raises(SettingsFileError, match="can't be read: No such file"):
        read_settings_file(Path(find_settings_file(str(tmp_path / "no"), {}) or ""), KNOWN)
    variables = {"XDG_CONFIG_HOME": str(tmp_path), "HOME": "/nowhere"}
    own = tmp_path / "seedance" / "server.toml"
    assert search_path(variables) == (own, Path("/etc/seedance/server.toml"))
    own.parent.mkdir()
    own.touch()
    assert find_settings_file(None, variables) == own
    assert find_settings_file("", variables) == own
    assert search_path({"XDG_CONFIG_HOME": "relative", "HOME": "/h"})[0] == Path(
        "/h/.config/seedance/server.toml"
    )
    assert search_path({}) == (Path("/etc/seedance/server.toml"),)


def test_likely_meant_is_silent_where_nothing_is_close() -> None:
    """A wild guess would mislead."""
    assert likely_meant("prot", ["port", "host"]) == "; did you mean port?"
    assert likely_meant("zebra", ["port", "host"]) == ""
