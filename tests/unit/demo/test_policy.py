"""The policy: seeded, mostly right, wrong in a believable way."""

from __future__ import annotations

import re

from rollbook.cli.demo.policy import reply

DRAWS = [f"draw-{number}" for number in range(200)]


def answer(question: str, draw: str, seed: int = 1) -> int:
    found = re.findall(r"^Answer: (\d+)$", reply(question, seed=seed, draw=draw).text, re.MULTILINE)
    assert len(found) == 1
    return int(found[0])


def wrong(left: int, right: int) -> int:
    return sum(answer(f"What is {left} × {right}?", draw) != left * right for draw in DRAWS)


def test_equal_arguments_give_equal_replies() -> None:
    assert reply("What is 47 × 38?", seed=1, draw="a") == reply("What is 47 × 38?", seed=1, draw="a")


def test_seed_and_draw_each_sample_anew() -> None:
    question = "What is 1234 × 567?"
    assert len({answer(question, draw) for draw in DRAWS}) > 1
    assert len({answer(question, "a", seed=seed) for seed in range(200)}) > 1


def test_mistakes_are_made_now_and_then_and_more_often_with_long_numbers() -> None:
    easy, hard = wrong(7, 8), wrong(1234, 567)
    assert 0 < easy < hard < len(DRAWS) / 2


def test_answer_is_the_sum_of_the_partial_products_also_when_one_is_wrong() -> None:
    for draw in DRAWS:
        *lines, last = reply("What is 452 × 318?", seed=1, draw=draw).text.splitlines()
        products = [int(line.partition(" = ")[2]) for line in lines]
        assert last == f"Answer: {sum(products)}"
        assert len(products) == 3


def test_right_reply_shows_the_long_multiplication() -> None:
    text = next(
        said for draw in DRAWS if (said := reply("What is 777 × 604?", seed=1, draw=draw).text).endswith("469308")
    )
    assert text == "777 × 4 = 3108\n777 × 600 = 466200\nAnswer: 469308"


def test_other_questions_get_no_number() -> None:
    said = reply("What is the capital of France?", seed=1, draw="a").text
    assert "Answer" not in said and "multiply" in said
