"""Files of a runtime, written and read from outside while programs inside plant what they like."""

import asyncio
from pathlib import Path

import pytest

from rollbook.tasks.runtimes import UnsafePathError
from rollbook.tasks.runtimes.lifetime import OwnedRuntime
from tests.support.runtimes import RuntimeMaker


async def test_program_reads_what_was_written_and_the_other_way_round(runtime: OwnedRuntime) -> None:
    data = bytes(range(256))
    await runtime.write("deep/er/in", data)
    await runtime.run("cp deep/er/in out && rm deep/er/in && rmdir deep/er deep")
    assert await runtime.read("out") == data
    assert (runtime.folder / "out").read_bytes() == data


async def test_path_may_be_whole(runtime: OwnedRuntime) -> None:
    await runtime.write(f"{runtime.workdir}/file", b"1")
    assert await runtime.read(f"{runtime.workdir}/./sub/../file") == b"1"


async def test_writing_replaces_a_file_of_any_mode(runtime: OwnedRuntime) -> None:
    await runtime.run("echo old > file; chmod 000 file")
    await runtime.write("file", b"new")
    assert (await runtime.run("cat file; stat -c %a file")).stdout == b"new644\n"


async def test_missing_file_is_missing(runtime: OwnedRuntime) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        await runtime.read("nowhere/file")
    with pytest.raises(FileNotFoundError):
        await runtime.read("file")


async def test_folder_is_no_file(runtime: OwnedRuntime) -> None:
    await runtime.run("mkdir folder")
    with pytest.raises(IsADirectoryError):
        await runtime.read("folder")
    with pytest.raises(IsADirectoryError):
        await runtime.write("folder", b"")
    assert (await runtime.run("ls -A . folder")).stdout == b".:\nfolder\n\nfolder:\n"


@pytest.mark.parametrize("path", ["", "a\0b"])
async def test_what_is_no_path_is_refused(runtime: OwnedRuntime, path: str) -> None:
    with pytest.raises(ValueError, match="not a path"):
        await runtime.read(path)


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text("of the host")
    return path


async def test_planted_link_is_not_read(runtime: OwnedRuntime, secret: Path) -> None:
    await runtime.run(["ln", "-s", str(secret), "link"])
    await runtime.run(["ln", "-s", str(secret.parent), "folder"])
    for path in ("link", "folder/secret"):
        with pytest.raises(UnsafePathError, match="symbolic link"):
            await runtime.read(path)


async def test_planted_link_is_replaced_and_not_written_through(runtime: OwnedRuntime, secret: Path) -> None:
    await runtime.run(["ln", "-s", str(secret), "link"])
    await runtime.write("link", b"ours")
    assert await runtime.read("link") == b"ours"
    assert secret.read_text() == "of the host"


async def test_planted_folder_is_not_written_through(runtime: OwnedRuntime, secret: Path) -> None:
    await runtime.run(["ln", "-s", str(secret.parent), "folder"])
    for path in ("folder/secret", "folder/new", "folder/new/file"):
        with pytest.raises(UnsafePathError, match="symbolic link"):
            await runtime.write(path, b"ours")
    assert [path.name for path in secret.parent.iterdir()] == ["secret"]
    assert secret.read_text() == "of the host"


async def test_folder_that_is_swapped_for_a_link_meanwhile_is_never_followed(
    runtime: OwnedRuntime, secret: Path
) -> None:
    swap = f"while [ ! -e stop ]; do rm -rf f; mkdir f; rm -rf f; ln -s {secret.parent} f; done"
    swapping = asyncio.create_task(runtime.run(swap, timeout_sec=60))
    for _ in range(300):
        try:
            await runtime.write("f/secret", b"ours")
        except (UnsafePathError, OSError):
            continue
    await runtime.write("stop", b"")
    await swapping
    assert secret.read_text() == "of the host"
    assert [path.name for path in secret.parent.iterdir()] == ["secret"]


@pytest.mark.parametrize("make", ["mkfifo file", "ln -s /dev/zero file"])
async def test_what_is_no_plain_file_is_not_read(runtime: OwnedRuntime, make: str) -> None:
    await runtime.run(make)
    with pytest.raises(UnsafePathError):
        await runtime.read("file")


async def test_endless_file_is_not_read_into_memory(runtime: OwnedRuntime) -> None:
    await runtime.run("truncate -s 1T file; printf 12345 > small")
    with pytest.raises(UnsafePathError, match="larger than"):
        await runtime.read("file")
    with pytest.raises(UnsafePathError, match="larger than 4 bytes"):
        await runtime.read("small", limit_bytes=4)
    assert await runtime.read("small", limit_bytes=5) == b"12345"


async def test_stop_removes_what_is_hard_to_remove(kind: RuntimeMaker, parent: Path) -> None:
    runtime = kind(parent=parent)
    await runtime.start()
    deep = f"mkdir -p {'d/' * 1100} && touch {'d/' * 1100}end"
    assert (await runtime.run(deep)).exit_code == 0
    await runtime.run("mkdir closed; touch closed/file; chmod 000 closed; ln -s / everything; mkfifo pipe")
    await runtime.stop()
    assert list(parent.iterdir()) == []
