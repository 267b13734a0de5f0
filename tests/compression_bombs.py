"""Messages that unfold to far more than they weigh, and others that lie about what they hold."""

import zstandard

ZEROS = bytes(64 << 20)
HEAD = b"\x28\xb5\x2f\xfd\x00\x20"
"""Of a frame with a window of 16 KiB that states no size."""


def block(kind: int, size: int, content: bytes, *, last: bool = False) -> bytes:
    """A block of a zstd frame: 0 is raw, 1 one byte repeated, 2 compressed."""
    return (size << 3 | kind << 1 | last).to_bytes(3, "little") + content


BOMBS = {
    "64 MiB, and says so": (zstandard.ZstdCompressor(level=3).compress(ZEROS), 4400),
    "64 MiB, and doesn't say": (
        zstandard.ZstdCompressor(level=3, write_content_size=False).compress(ZEROS),
        4400,
    ),
    "a wide window": (HEAD[:5] + b"\x88" + block(1, 131_072, b"a") * 100, 4400),
    "64 MiB in a narrow window": (HEAD + block(1, 16_384, b"a") * 4096, 1009),
    "a byte over the limit": (HEAD + block(1, 16_384, b"a") * 16 + block(0, 1, b"a"), 1009),
    "a size that is a lie": (b"\x28\xb5\x2f\xfd\x20\x64" + block(1, 200, b"a", last=True), 4400),
    "two frames": (2 * (HEAD + block(0, 1, b"a", last=True)), 4400),
    "cut short": (HEAD + block(0, 100, b"a"), 4400),
}
"""Each with the close code that it deserves."""
