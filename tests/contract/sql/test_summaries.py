"""What the later views say of what is open, of hard texts, while others write, and after a migration."""

import time
from collections.abc import Iterator

import pytest

from rollbook.ledger import commands as cmd
from rollbook.ledger.schema import downgrade, upgrade
from rollbook.ledger.urls import POSTGRES, parse_url
from rollbook_projections.views import VIEWS_1, VIEWS_2
from tests.contract.sql.asking import ask
from tests.support.histories import HARD_TEXTS, interleaved, texts_in_every_place
from tests.support.ledger import SECOND_US, Clock, Writing, admit, api, claim, close, enter, finish, scheduler, writing
from tests.support.sql import shell

STATES = "SELECT rollout_id, status, scheduler, since_us FROM open_rollouts ORDER BY rollout_id"


@pytest.fixture
def writer(database_url: str) -> Iterator[Writing]:
    with writing(database_url, Clock(time.time_ns() // 1_000 - 700 * SECOND_US)) as made:
        yield made


def test_open_rollout_is_where_it_is_since_it_came_there(writer: Writing, database_url: str) -> None:
    now, forward = writer.clock, writer.clock.forward
    writer.batch(scheduler(), *(admit(f"r-{i}") for i in range(1, 4)))
    admitted = now()
    forward(10)
    writer.do(claim(limit=2))
    claimed = now()
    forward(10)
    writer.do(enter("r-1"))
    running = now()
    assert ask(database_url, STATES).rows == [
        ("r-1", "running", "s-1", running),
        ("r-2", "queued", "s-1", claimed),
        ("r-3", "queued", None, admitted),
    ]
    forward(10)
    writer.do(enter("r-1", phase="grading"))
    assert ask(database_url, STATES).rows[0] == ("r-1", "grading", "s-1", now())
    writer.do(finish("r-1"))
    assert [row[0] for row in ask(database_url, STATES).rows] == ["r-2", "r-3"]


def test_rollout_is_open_while_it_cleans_up(writer: Writing, database_url: str) -> None:
    writer.batch(scheduler(), api(), admit("r-1"))
    writer.do(claim())
    writer.clock.forward(121)
    writer.do(cmd.Beat("a-1"))
    writer.do(cmd.ExpireLeases())
    assert ask(database_url, STATES).rows == [("r-1", "failure", "s-1", writer.clock())]
    writer.do(close("r-1"))
    assert ask(database_url, STATES).rows == []


def test_age_of_an_open_rollout_is_told_by_the_clock(writer: Writing, database_url: str) -> None:
    writer.do(admit("r-1"))
    before = time.time()
    ((seconds,),) = ask(database_url, "SELECT seconds FROM open_rollouts WHERE seconds > 600").rows
    admitted = writer.clock.now / SECOND_US
    # The databases of tests run on this host; SQLite tells milliseconds.
    assert before - admitted - 0.01 <= seconds <= time.time() - admitted + 0.01
    assert ask(database_url, "SELECT seconds FROM open_rollouts WHERE seconds > 86400").rows == []


@pytest.mark.parametrize("text", HARD_TEXTS, ids=ascii)
def test_no_text_breaks_a_view(writer: Writing, database_url: str, text: str) -> None:
    texts_in_every_place(writer, text)
    for name in VIEWS_2:
        ask(database_url, f"SELECT * FROM {name}")
    assert len(ask(database_url, "SELECT * FROM rollout_summary").rows) == 3
    assert len(ask(database_url, "SELECT * FROM attempt_summary").rows) == 2


def test_reader_and_writer_do_not_wait_for_each_other(writer: Writing, database_url: str) -> None:
    writer.do(admit("r-1"))
    count = "SELECT count(*) FROM rollout_summary"
    with shell(database_url) as reader:
        isolation = " ISOLATION LEVEL REPEATABLE READ" if parse_url(database_url).get_backend_name() == POSTGRES else ""
        reader.rows(f"BEGIN{isolation}")
        assert reader.rows(count) == [(1,)]
        writer.do(admit("r-2"))
        assert reader.rows(count) == [(1,)]
        reader.rows("ROLLBACK")
        assert reader.rows(count) == [(2,)]


def test_later_views_go_and_come_with_their_migration(writer: Writing, database_url: str) -> None:
    interleaved(writer)
    url = parse_url(database_url)
    answers = {name: ask(database_url, f"SELECT count(*) FROM {name}") for name in (*VIEWS_1, *VIEWS_2)}
    downgrade(url, "0004")
    assert {name: ask(database_url, f"SELECT count(*) FROM {name}") for name in VIEWS_1} == {
        name: answers[name] for name in VIEWS_1
    }
    assert views(database_url) == set(VIEWS_1)
    upgrade(url)
    assert {name: ask(database_url, f"SELECT count(*) FROM {name}") for name in answers} == answers


def views(database_url: str) -> set[str]:
    if parse_url(database_url).get_backend_name() == POSTGRES:
        text = "SELECT viewname FROM pg_views WHERE schemaname = 'public'"
    else:
        text = "SELECT name FROM sqlite_master WHERE type = 'view'"
    return {row[0] for row in ask(database_url, text).rows}


@pytest.mark.parametrize(
    "query, index",
    [
        ("SELECT rollout_id FROM rollout_summary WHERE finished_us >= 1772517600000000", "rollouts_finished"),
        ("SELECT * FROM open_rollouts", "rollouts_live"),
        ("SELECT * FROM open_rollouts", "rollouts_owned"),
    ],
)
def test_few_of_many_rollouts_are_found_by_an_index(recorded_url: str, query: str, index: str) -> None:
    if parse_url(recorded_url).get_backend_name() == POSTGRES:
        # A few rows lie in one page, which is cheaper read whole.
        plan = ask(recorded_url, f"EXPLAIN {query}", first=["SET enable_seqscan = off"])
    else:
        plan = ask(recorded_url, f"EXPLAIN QUERY PLAN {query}")
    assert any(index in str(row) for row in plan.rows)
