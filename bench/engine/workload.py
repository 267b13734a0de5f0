"""What every engine is asked: the same prompts, of one length in tokens, none twice in a run.

No prompt shares its beginning with another one, so no cached prefix flatters an engine that keeps them.
Everything follows from the numbers given: two runs ask the same, and all engines of a run do.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import accumulate

from attrs import frozen

__all__ = ["TEXTS", "Request", "Tokenize", "burst", "poisson_times", "prompt", "text_request"]

Tokenize = Callable[[str], Sequence[int]]
"""Text to token ids, as the engines do it: with the beginning-of-sequence token, where the model has one."""

# Plain words that a vocabulary holds whole, so that a text of the wanted length in tokens is found fast.
WORDS = (
    "water stone river light garden winter music window paper mountain bread letter morning shadow forest "
    "silver harbor candle engine bridge summer island thunder market story doctor teacher village planet "
    "kitchen bottle feather mirror ladder pocket blanket castle desert flower ocean"
)


@frozen
class Request:
    """One generation: greedy, and to its full length whatever the model says.

    Attributes:
        prompt: Text to go on from.
        max_tokens: Tokens to generate.
    """

    prompt: str
    max_tokens: int


def prompt(seed: str, tokens: int, tokenize: Tokenize) -> str:
    """Return a text of exactly so many tokens that depends on the seed from its first word on.

    Raises:
        ValueError: The tokenizer lets no text of this length be made of plain words.
    """
    dice, vocabulary = random.Random(seed), WORDS.split()
    words = dice.choices(vocabulary, k=tokens)
    for _ in range(50 * tokens):
        length = len(tokenize(" ".join(words)))
        if length == tokens:
            return " ".join(words)
        if length > tokens:
            del words[-2:]  # two: else it might swing between two lengths for ever
        else:
            words.append(dice.choice(vocabulary))
    raise ValueError(f"no text of {tokens} tokens was found")


TEXTS = {
    "code": "# Returns the numbers from first to last.\ndef numbers(first, last):\n    result = []\n",
    "list": "The names of the months and their numbers:\n1. January: 1\n2. February: 2\n3. March: 3\n",
    "story": "Once upon a time there was a clockmaker who lived by the sea. One winter evening",
    "edit": """Here is a Python function:

```python
def total_price(items, discount):
    total = 0
    for item in items:
        price = item["price"]
        quantity = item["quantity"]
        if quantity > 0:
            total = total + price * quantity
    if discount > 0:
        total = total - total * discount
    return total
```

The same function, with the parameter discount renamed to rebate:

```python
""",
}
"""Texts that repeat themselves or their prompt more and less: what drafts taken from a text are good for."""


def text_request(kind: str, number: int, max_tokens: int) -> Request:
    """Return a request for one of `TEXTS`, which differs from round to round from its first word on."""
    return Request(f"Part {number}\n\n{TEXTS[kind]}", max_tokens)


def burst(name: str, streams: int, prompt_tokens: int, max_tokens: int, tokenize: Tokenize) -> list[Request]:
    """Return one request for each stream of a level; the name tells levels and rounds apart."""
    return [
        Request(prompt(f"{name}-{streams}-{number}", prompt_tokens, tokenize), max_tokens)
        for number in range(streams)
    ]


def poisson_times(seed: str, rate: float, seconds: float) -> list[float]:
    """Return moments of arrival within so many seconds, at this mean rate a second, each as likely as any."""
    dice = random.Random(seed)
    # Far more gaps than the span holds on average, so that the last ones are beyond it.
    gaps = (dice.expovariate(rate) for _ in range(int(4 * rate * seconds) + 50))
    return [moment for moment in accumulate(gaps) if moment < seconds]
