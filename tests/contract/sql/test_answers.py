"""The documents' queries: the same text on both databases, and exactly the answers that the documents show."""

import re

import pytest

from rollbook_projections.task_views import VIEWS_3
from rollbook_projections.views import VIEWS, VIEWS_1, VIEWS_2
from tests.contract.sql.asking import ask
from tests.contract.sql.documented import Question, cells, questions, shows

QUESTIONS = questions("sql.md")
LATER = [*VIEWS_2, *(name for name in VIEWS_3 if name not in {**VIEWS_1, **VIEWS_2})]
OF_VIEWS = [question for question in questions("views.md") if question.heading in LATER]


def test_a_dozen_questions_are_asked() -> None:
    assert len(QUESTIONS) >= 12
    assert len({question.heading for question in QUESTIONS}) == len(QUESTIONS)
    assert [question.heading for question in OF_VIEWS] == LATER


@pytest.mark.parametrize("question", [*QUESTIONS, *OF_VIEWS], ids=lambda question: question.heading)
def test_answer_is_the_one_shown(recorded_url: str, question: Question) -> None:
    heading, rule, *lines = question.result
    answer = ask(recorded_url, question.query)
    assert answer.columns == cells(heading, rule)
    assert len(answer.rows) == len(lines) > 0
    for line, row in zip(lines, answer.rows, strict=True):
        shown = cells(line, rule)
        assert all(map(shows, shown, row)), f"{question.heading}: shown {shown}, answered {row}"


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.heading)
def test_query_reads_documented_views_alone(question: Question) -> None:
    own = set(re.findall(r"(\w+) AS \(\n", question.query))
    assert set(re.findall(r"\b(?:FROM|JOIN) (\w+)", question.query)) - own <= set(VIEWS)


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.heading)
def test_order_of_the_answer_is_no_accident(question: Question) -> None:
    """Without it, both databases might answer in the same order today."""
    assert re.search(r"^ORDER BY .+;\n\Z", question.query, re.MULTILINE)
