"""What a check-up makes of what it sees: servers, clocks, connections, queues, file systems."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from rollbook.ledger.checkup import judge_queue
from rollbook.ledger.clock import clock_trouble
from rollbook.ledger.diagnosis import size_text
from rollbook.ledger.postgres.checkup import Server, judge_room, judge_server, judge_skew
from rollbook.ledger.sqlite.checkup import file_system
from rollbook.ledger.vitals import MemberVitals, QueueVitals

SECOND_US = 1_000_000
NOW = 1_700_000_000 * SECOND_US
SERVER = Server(
    release=18,
    version="18.1",
    encoding="UTF8",
    fsync="on",
    full_page_writes="on",
    synchronous_commit="on",
    autovacuum="on",
    read_only=False,
    most_connections=97,
    connections=12,
    long_transactions=0,
)


def judged(**changes: object) -> dict[str, tuple[str, str | None]]:
    """Level and fix by subject."""
    server = msgspec.structs.replace(SERVER, **changes)
    return {found.subject: (found.level, found.fix) for found in judge_server(server, place="a server")}


def test_a_server_as_it_should_be_is_well() -> None:
    assert judged() == {"database": ("ok", None), "durability": ("ok", None)}


@pytest.mark.parametrize("commit", ["local", "remote_write", "remote_apply"])
def test_every_durable_way_to_commit_is_well(commit: str) -> None:
    assert judged(synchronous_commit=commit)["durability"] == ("ok", None)


def test_an_old_release_is_told_alone() -> None:
    assert judged(release=14, fsync="off") == {"database": ("error", "use PostgreSQL 15 or later")}


@pytest.mark.parametrize(
    ("changes", "subject", "level", "fix"),
    [
        ({"fsync": "off"}, "durability", "error", "set fsync = on"),
        (
            {"full_page_writes": "off", "synchronous_commit": "off"},
            "durability",
            "error",
            "set full_page_writes = on, synchronous_commit = on",
        ),
        ({"encoding": "LATIN1"}, "encoding", "error", "ENCODING 'UTF8'"),
        ({"read_only": True}, "writing", "error", "connect to the primary"),
        ({"autovacuum": "off"}, "autovacuum", "warning", "set autovacuum = on"),
        ({"long_transactions": 2}, "transactions", "warning", "pg_stat_activity"),
    ],
)
def test_a_setting_that_harms_a_ledger_is_told_with_its_fix(
    changes: dict[str, object], subject: str, level: str, fix: str
) -> None:
    found_level, found_fix = judged(**changes)[subject]
    assert found_level == level
    assert fix in (found_fix or "")


@pytest.mark.parametrize(
    ("skew_us", "level", "says"),
    [
        (0, "ok", "within 1 ms"),
        (-40_000, "ok", "within 40 ms"),
        (3 * SECOND_US, "warning", "3.0 s behind"),
        (-600 * SECOND_US, "warning", "600.0 s ahead of"),
    ],
)
def test_a_clock_is_judged_by_how_far_it_is_off(skew_us: int, level: str, says: str) -> None:
    found = judge_skew(skew_us)
    assert (found.level, says in found.text) == (level, True)


def test_members_tell_of_a_clock_that_is_seconds_off_and_which_way() -> None:
    assert clock_trouble(4_900_000) is None
    assert "600 s behind" in (clock_trouble(600 * SECOND_US) or "")
    assert "600 s ahead of" in (clock_trouble(-600 * SECOND_US) or "")


@pytest.mark.parametrize(
    ("connections", "members", "level"), [(12, 3, "ok"), (95, 3, "warning"), (12, 13, "error"), (12, 12, "ok")]
)
def test_connections_must_have_room_for_one_process_more(connections: int, members: int, level: str) -> None:
    server = msgspec.structs.replace(SERVER, connections=connections)
    assert judge_room(server, members=members).level == level


def scheduler(*, accepting: bool = True, capacity: int = 4, free: int | None = 0) -> MemberVitals:
    return MemberVitals(
        member_id="s-1",
        kind="scheduler",
        host="host",
        pid=1,
        entrypoint="flow.py",
        capacity=capacity,
        free=free,
        started_at=NOW,
        beat_at=NOW,
        accepting=int(accepting),
        trouble=None,
        queues=("q",),
    )


@pytest.mark.parametrize(
    ("schedulers", "waits_sec", "level", "fix"),
    [
        ([], 1, "error", "rollbook scheduler ENTRYPOINT --queue q"),
        ([scheduler(accepting=False)], 1, "warning", "start another one"),
        ([scheduler(capacity=0)], 1, "error", "logs"),
        ([scheduler(free=2)], 1, "ok", ""),
        ([scheduler(free=2)], 3_600, "warning", "logs"),
        ([scheduler(free=0)], 3_600, "ok", ""),
        ([scheduler(free=None)], 3_600, "ok", ""),
        ([scheduler(accepting=False), scheduler()], 1, "ok", ""),
    ],
    ids=["nobody", "ending", "no runner", "just came", "idle slots", "all busy", "slots unknown", "one goes on"],
)
def test_a_queue_is_judged_by_who_serves_it(
    schedulers: list[MemberVitals], waits_sec: int, level: str, fix: str
) -> None:
    queue = QueueVitals("q", 3, 1, NOW - waits_sec * SECOND_US)
    (found,) = judge_queue(queue, schedulers, NOW)
    assert found.level == level
    assert fix in (found.fix or "")
    assert f"3 rollouts wait and 1 run; the oldest waits for {waits_sec} s" in found.text


def test_an_empty_queue_needs_nobody() -> None:
    assert list(judge_queue(QueueVitals("q", 0, 0, None), [], NOW)) == []


MOUNTS = """\
21 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw
30 21 0:25 / /mnt/share rw - nfs4 server:/export rw
31 30 8:2 / /mnt/share/local\\040disk rw shared:1 - xfs /dev/sdb1 rw
32 21 0:30 / /tmp rw - ext4 /dev/sdc1 rw
33 21 0:31 / /tmp rw - tmpfs tmpfs rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home/ledger.sqlite3", "ext4"),
        ("/mnt/share/ledger.sqlite3", "nfs4"),
        ("/mnt/share/local disk/ledger.sqlite3", "xfs"),
        ("/mnt/shared/ledger.sqlite3", "ext4"),
        ("/tmp/ledger.sqlite3", "tmpfs"),
    ],
)
def test_a_file_system_is_that_of_the_innermost_mount(tmp_path: Path, path: str, kind: str) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(MOUNTS)
    assert file_system(Path(path), mounts=mounts) == kind


def test_a_system_that_does_not_tell_its_mounts_has_none(tmp_path: Path) -> None:
    assert file_system(tmp_path, mounts=tmp_path / "nowhere") is None


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1_023, "1023 B"), (1_536, "1.5 KiB"), (3 * 1024**4, "3.0 TiB")]
)
def test_sizes_are_told_in_the_unit_that_fits(count: int, text: str) -> None:
    assert size_text(count) == text
