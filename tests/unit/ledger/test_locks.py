"""The file lock that orders writing processes."""

import stat
import threading
from pathlib import Path

import pytest

from rollbook.ledger.sqlite.locks import FileLock


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.sqlite3.lock"


def test_second_descriptor_is_refused_while_the_first_holds_the_lock(path: Path) -> None:
    first, second = FileLock(path), FileLock(path)
    first.acquire(0)
    with pytest.raises(TimeoutError, match="another process held"):
        second.acquire(0.01)
    first.release()
    second.acquire(0)
    first.close()
    second.close()


def test_waiting_descriptor_gets_the_lock_once_it_is_given_back(path: Path) -> None:
    first, second = FileLock(path), FileLock(path)
    first.acquire(0)
    taken = threading.Event()

    def wait() -> None:
        second.acquire(30)
        taken.set()

    waiter = threading.Thread(target=wait)
    waiter.start()
    assert not taken.is_set()
    first.release()
    assert taken.wait(30)
    waiter.join()
    first.close()
    second.close()


def test_closing_gives_the_lock_back_and_a_closed_lock_can_be_taken_again(path: Path) -> None:
    first, second = FileLock(path), FileLock(path)
    first.acquire(0)
    first.close()
    second.acquire(0)
    second.close()
    first.acquire(0)
    first.close()


def test_releasing_what_is_not_held_does_no_harm(path: Path) -> None:
    lock = FileLock(path)
    lock.release()
    lock.acquire(0)
    lock.release()
    lock.release()
    lock.close()


def test_lock_file_is_the_owners_alone(path: Path) -> None:
    lock = FileLock(path)
    lock.acquire(0)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    lock.close()


def test_missing_folder_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        FileLock(tmp_path / "nowhere" / "lock").acquire(0)
