"""Artifact folders: names, place, failure."""

from pathlib import Path

import pytest

from rollbook.backends.artifacts import artifacts_root, folder_name, make_folder


@pytest.mark.parametrize(
    ("rollout_id", "name"),
    [("plain-id_1.x~", "plain-id_1.x~"), ("a b?", "a%20b%3F"), ("é", "%C3%A9"), ("%2F", "%252F")],
)
def test_folder_is_the_percent_encoded_id(rollout_id: str, name: str) -> None:
    assert folder_name(rollout_id) == name


def test_long_ids_fit_a_file_system_and_stay_distinct(tmp_path: Path) -> None:
    ids = ["é" * 512, "é" * 511 + "xx", "a" * 1024, "a" * 1023 + "b"]
    names = {folder_name(rollout_id) for rollout_id in ids}
    assert len(names) == 4
    assert all(len(name) <= 200 for name in names)
    assert make_folder(tmp_path, ids[0]).is_dir()


def test_folder_is_made_with_its_parents_and_may_be_there(tmp_path: Path) -> None:
    root = tmp_path / "a" / "b"
    assert make_folder(root, "r") == root / "r"
    assert make_folder(root, "r").is_dir()


def test_root_comes_from_the_environment_and_is_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert artifacts_root() == tmp_path / ".rollbook" / "artifacts"
    monkeypatch.setenv("ROLLBOOK_ARTIFACTS_DIR", "elsewhere")
    assert artifacts_root() == tmp_path / "elsewhere"


def test_folder_that_cannot_be_made_names_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OSError, match="set ROLLBOOK_ARTIFACTS_DIR"):
        make_folder(tmp_path / "file", "r")
