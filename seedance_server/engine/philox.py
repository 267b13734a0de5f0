"""Randomness as a function of a counter: the same (seed, position) gives the same number for ever.

Philox 4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011),
which passes BigCrush. There is no state, so nothing that happens between two draws (neighbours in the
batch, preemption, a resume on another machine) can change them. Pure Python integers.
"""

__all__ = ["philox4x32", "uniform"]

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_MASK = 0xFFFFFFFF


def philox4x32(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Ten rounds over four 32-bit words under a key of two, as the paper's Philox4x32-10."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        high, low = divmod(c0 * _MULTIPLIERS[0], 1 << 32)
        high2, low2 = divmod(c2 * _MULTIPLIERS[1], 1 << 32)
        c0, c1, c2, c3 = high2 ^ c1 ^ k0, low2, high ^ c3 ^ k1, low
        k0, k1 = (k0 + _KEY_STEPS[0]) & _MASK, (k1 + _KEY_STEPS[1]) & _MASK
    return c0, c1, c2, c3


def uniform(seed: int, position: int) -> float:
    """One number from the uniform distribution over [0, 1), a multiple of 2**-53.

    Args:
        seed: Any signed 64-bit integer; all its bits count.
        position: Non-negative 64-bit index of the draw.
    """
    key = (seed & _MASK, (seed >> 32) & _MASK)
    word0, word1, _, _ = philox4x32((position & _MASK, (position >> 32) & _MASK, 0, 0), key)
    return ((word0 << 32 | word1) >> 11) * 2.0**-53
