"""Tests of `seedance_server.keys`."""

import hmac
import os

import pytest

from seedance_server.keys import API_KEY_ID, Key, KeyRing, key_id, make_key


def made(tenant: str = "acme", number: int = 1) -> tuple[str, Key]:
    return make_key(tenant, lambda count: bytes([number]) * count)


def test_key_is_found_by_its_whole_text_alone() -> None:
    """Every other text, however near, finds nothing."""
    text, key = made()
    ring = KeyRing([key])
    assert ring.find(text) == key
    for wrong in ("", "seedance_", text[:-1], text + "x", text.upper(), text[:-1] + "A", f" {text}", key.id):
        assert ring.find(wrong) is None, wrong


def test_key_has_256_random_bits_and_its_id_in_view() -> None:
    """The id may be told to anybody; what is kept doesn't show the secret."""
    text, key = make_key("acme", os.urandom)
    assert key_id(text) == key.id
    assert len(text.rpartition("_")[2]) >= 40 or "_" in text[22:]
    assert text[22:] not in repr(key)
    assert key.sha256.hex() not in repr(key)
    assert make_key("acme", os.urandom)[0] != text


def test_revoked_key_opens_nothing() -> None:
    """It is looked up like an unknown one."""
    text, key = made()
    revoked = Key(key.id, key.tenant, key.sha256, revoked=True)
    ring = KeyRing([revoked])
    assert ring.find(text) is None
    assert not ring.holds(key)
    assert not KeyRing().holds(key)
    assert KeyRing([key]).holds(key)


def test_key_of_the_operator_may_have_any_form() -> None:
    """The one of --api-key, beside a key file or alone."""
    text, key = made()
    ring = KeyRing([key], "s3cret-key-of-16+", "local")
    assert ring.find("s3cret-key-of-16+") == Key(API_KEY_ID, "local", ring.find("s3cret-key-of-16+").sha256)
    assert ring.find(text) == key
    assert ring.find("") is None
    assert ring.holds(ring.find("s3cret-key-of-16+"))
    assert not KeyRing([key], "another-key-of-16", "local").holds(ring.find("s3cret-key-of-16+"))


@pytest.mark.parametrize("ring", [KeyRing(), KeyRing([made()[1]]), KeyRing([made()[1]], "k" * 16, "local")])
def test_lookup_does_the_same_work_for_every_text(ring: KeyRing, monkeypatch) -> None:
    """Unknown id, wrong secret, no form at all: two comparisons of 32 bytes, always."""
    compared = []

    def compare(left: bytes, right: bytes) -> bool:
        compared.append((len(left), len(right)))
        return left == right

    monkeypatch.setattr(hmac, "compare_digest", compare)
    for text in ("", "x", made()[0], made()[0][:-1] + "A", made(number=9)[0], "k" * 16):
        compared.clear()
        ring.find(text)
        assert compared == [(32, 32)] * 2
