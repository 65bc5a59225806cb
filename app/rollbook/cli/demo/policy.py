"""The demo's policy: it multiplies as people do on paper, and now and then forgets a carry. Pure and seeded."""

from __future__ import annotations

import random
import re

import msgspec

MISTAKE_RATE = 0.04
"""How likely a mistake is for each digit of the first factor, in each partial product: long numbers are hard."""

_FACTORS = re.compile(r"(\d+)\s*[×x*]\s*(\d+)")


class Reply(msgspec.Struct, frozen=True):
    """What the policy says, and how long it takes to say it."""

    text: str
    seconds: float


def reply(question: str, *, seed: int, draw: str) -> Reply:
    """The answer to a question. Equal arguments give equal answers; another ``draw`` samples anew."""
    rng = random.Random(f"{seed}/{draw}/{question}")
    seconds = rng.uniform(0.05, 0.25)
    found = _FACTORS.search(question)
    if found is None:
        return Reply("I can only multiply two whole numbers, as in 47 × 38.", seconds)
    left, right = int(found[1]), int(found[2])
    parts = [int(digit) * 10**place for place, digit in enumerate(reversed(str(right))) if digit != "0"]
    rate = MISTAKE_RATE * len(str(left))
    products = [_spoiled(left * part, rng) if rng.random() < rate else left * part for part in parts]
    lines = [f"{left} × {part} = {product}" for part, product in zip(parts, products, strict=True)]
    return Reply("\n".join([*lines, f"Answer: {sum(products)}"]), seconds)


def _spoiled(product: int, rng: random.Random) -> int:
    """A product in which one carry was lost or taken twice."""
    places = range(1, max(2, len(str(product))))
    wrong: int = product + rng.choice((-1, 1)) * 10 ** rng.choice(places)
    return abs(wrong)
