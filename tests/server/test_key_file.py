"""Tests of `seedance_server.key_file`."""

import os
import threading
from pathlib import Path

import pytest

from seedance_server.errors import KeyFileError
from seedance_server.key_file import add_key, parse_key_file, read_key_file, revoke_key
from seedance_server.keys import Key, make_key
from seedance_server.tenants import Priority

TEXT = """\
# ours
[tenants.acme]  # pays
weight = 3

[tenants."b.c"]
[keys.0123456789ab]  # the laptop
tenant = "acme"
sha256 = "{digest}"
""".format(digest="ab" * 32)


def key(number: int, tenant: str = "acme") -> Key:
    return make_key(tenant, lambda count: bytes([number]) * count, "2026-01-02T03:04:05Z")[1]


def test_key_file_is_read_whole() -> None:
    """Tenants and keys, with what nobody wrote left out."""
    file = parse_key_file(TEXT)
    assert sorted(file.tenants) == ["acme", "b.c"]
    assert file.keys["0123456789ab"] == Key("0123456789ab", "acme", b"\xab" * 32)
    assert parse_key_file("").tenants == {}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[", "isn't TOML"),
        ("x = 1", "table 'x'"),
        ("tenants = 1", r"\[tenants\]"),
        ("[tenants]\nacme = 1", r"\[tenants\]"),
        ("[tenants.acme]\nweight = 0", "weight"),
        ("[keys.0123456789ab]\ntenant = 'no'\nsha256 = ''", r"there is no \[tenants.no\]"),
        ("[tenants.a]\n[keys.0123456789ab]\ntenant = 'a'", "sha256"),
        ("[tenants.a]\n[keys.0123456789ab]\ntenant = 'a'\nsha256 = 'zz'", "sha256"),
        ("[tenants.a]\n[keys.short]\ntenant = 'a'", "twelve"),
        (TEXT + "revoked = 'yes'", "revoked must be"),
        (TEXT + "revokd = true", "'revokd'"),
    ],
)
def test_key_file_that_says_nonsense_is_refused_in_one_line(tmp_path: Path, text: str, words: str) -> None:
    """The operator learns where; nothing is guessed."""
    path = tmp_path / "keys.toml"
    path.write_text(text)
    with pytest.raises(KeyFileError, match=words) as caught:
        read_key_file(path)
    assert "\n" not in str(caught.value)


def test_key_file_that_cannot_be_read_says_so(tmp_path: Path) -> None:
    """Missing, a directory, not text, far too large."""
    with pytest.raises(KeyFileError, match="No such file"):
        read_key_file(tmp_path / "missing")
    with pytest.raises(KeyFileError, match="directory"):
        read_key_file(tmp_path)
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe")
    with pytest.raises(KeyFileError, match="UTF-8"):
        read_key_file(binary)
    with (tmp_path / "large").open("wb") as file:
        file.truncate(17 << 20)
    with pytest.raises(KeyFileError, match="larger"):
        read_key_file(tmp_path / "large")


def test_adding_and_revoking_keep_every_word_of_the_operator(tmp_path: Path) -> None:
    """Comments and order stay; only what is asked for is added."""
    path = tmp_path / "keys.toml"
    path.write_text(TEXT)
    path.chmod(0o640)
    add_key(path, key(1))
    add_key(path, key(2, "new"), {"weight": "2", "priority": '"low"'})
    revoke_key(path, "0123456789ab")
    revoke_key(path, "0123456789ab")
    text = path.read_text()
    for line in TEXT.splitlines():
        assert line in text
    file = read_key_file(path)
    assert file.keys["0123456789ab"].revoked
    assert not file.keys[key(1).id].revoked
    assert (file.tenants["new"].weight, file.tenants["new"].priority) == (2.0, Priority.LOW)
    assert path.stat().st_mode & 0o777 == 0o640
    assert [entry.name for entry in tmp_path.iterdir()] == ["keys.toml"]


def test_new_key_file_is_its_users_alone(tmp_path: Path) -> None:
    """Made by the first key."""
    path = tmp_path / "keys.toml"
    add_key(path, key(1, "a.b"))
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(read_key_file(path).tenants) == ["a.b"]


def test_changes_that_cannot_be_made_change_nothing(tmp_path: Path) -> None:
    """An unknown key, settings of a tenant that is there, a form that isn't ours, a bad file."""
    path = tmp_path / "keys.toml"
    inline = (
        f'tenants.acme = {{}}\nkeys = {{ 0123456789ab = {{ tenant = "acme", sha256 = "{"ab" * 32}" }} }}\n'
    )
    path.write_text(inline)
    with pytest.raises(KeyFileError, match="has no key"):
        revoke_key(path, "ba9876543210")
    with pytest.raises(KeyFileError, match="edit it"):
        revoke_key(path, "0123456789ab")
    with pytest.raises(KeyFileError, match="change its settings there"):
        add_key(path, key(1), {"weight": "2"})
    with pytest.raises(KeyFileError, match="edit it"):
        add_key(path, key(1))
    assert path.read_text() == inline
    path.write_text("[")
    with pytest.raises(KeyFileError, match="TOML"):
        add_key(path, key(1))
    with pytest.raises(KeyFileError, match="can't be written"):
        add_key(tmp_path / "no" / "keys.toml", key(1))


def test_crash_while_writing_leaves_the_old_file(tmp_path: Path, monkeypatch) -> None:
    """The new one takes its place in one step, after it is on the disk."""
    path = tmp_path / "keys.toml"
    path.write_text(TEXT)

    def fail(*_: object) -> None:
        raise OSError(28, "full")

    for step in ((os, "fsync"), (Path, "replace")):
        with monkeypatch.context() as patch:
            patch.setattr(*step, fail)
            with pytest.raises(KeyFileError, match="No space left"):
                add_key(path, key(1))
        assert path.read_text() == TEXT
        assert [entry.name for entry in tmp_path.iterdir()] == ["keys.toml"]


def test_changes_at_once_all_happen(tmp_path: Path) -> None:
    """Two operators, or two scripts: neither's key is lost."""
    path = tmp_path / "keys.toml"
    threads = [threading.Thread(target=add_key, args=(path, key(number))) for number in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(read_key_file(path).keys) == 8


def test_key_file_behind_a_link_stays_behind_it(tmp_path: Path) -> None:
    """The file is replaced where it lies."""
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "keys.toml").write_text(TEXT)
    link = tmp_path / "keys.toml"
    link.symlink_to(tmp_path / "real" / "keys.toml")
    add_key(link, key(1))
    assert link.is_symlink()
    assert len(read_key_file(tmp_path / "real" / "keys.toml").keys) == 2
