"""What holds on a connection."""

from seedance_wire.capabilities import PIECES, ZSTD, agreed_capabilities


def test_agreed_capabilities_are_what_both_ends_have() -> None:
    """An unknown name of the client's is no error: a newer one may offer more than this server knows."""
    assert agreed_capabilities((ZSTD, "later", PIECES), (PIECES, ZSTD)) == (PIECES, ZSTD)
    assert agreed_capabilities((PIECES,), ()) == ()
    assert agreed_capabilities((), (PIECES, ZSTD)) == ()


def test_compression_can_be_declined_alone() -> None:
    """Whoever has no processor to spare still sends short frames."""
    assert agreed_capabilities((PIECES, ZSTD), (PIECES, ZSTD), compression=False) == (PIECES,)
