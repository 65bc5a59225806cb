"""Secret keys, sealed secrets, polling tokens."""

import base64
import stat
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook.ledger.secrets import (
    KEY_VARIABLE,
    RolloutSecrets,
    SecretKeyError,
    SecretKeys,
    endpoint_digest,
    endpoint_origin,
    new_key,
    new_nonce,
    token_digest,
)

PLAIN = RolloutSecrets("https://chat.example/v1/capability-0123456789", "sk-0123456789abcdef")


def keys(*texts: str) -> SecretKeys:
    return SecretKeys.parse(",".join(texts or (new_key(),)))


def test_sealed_secrets_open_again() -> None:
    ours = keys()
    assert ours.open(ours.seal(PLAIN, "r-1"), "r-1") == PLAIN


@given(st.text(st.characters(exclude_categories=["Cs"])), st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_survives_sealing(url: str, key: str) -> None:
    ours = keys()
    plain = RolloutSecrets(url, key)
    assert ours.open(ours.seal(plain, "r"), "r") == plain


def test_sealed_bytes_show_nothing_and_differ_each_time() -> None:
    ours = keys()
    first, second = ours.seal(PLAIN, "r-1"), ours.seal(PLAIN, "r-1")
    assert first != second
    assert b"capability" not in first
    assert b"sk-0123456789abcdef" not in first


def test_secrets_moved_to_another_rollout_do_not_open() -> None:
    ours = keys()
    with pytest.raises(SecretKeyError, match="r-2"):
        ours.open(ours.seal(PLAIN, "r-1"), "r-2")


@pytest.mark.parametrize("index", [0, 5, 12, 20, -1])
def test_altered_secrets_do_not_open(index: int) -> None:
    ours = keys()
    sealed = bytearray(ours.seal(PLAIN, "r-1"))
    sealed[index] ^= 1
    with pytest.raises(SecretKeyError):
        ours.open(bytes(sealed), "r-1")


def test_rotated_key_still_opens_and_the_first_one_seals() -> None:
    old, new = new_key(), new_key()
    rotated = keys(new, old)
    assert rotated.open(keys(old).seal(PLAIN, "r-1"), "r-1") == PLAIN
    assert keys(new).open(rotated.seal(PLAIN, "r-1"), "r-1") == PLAIN
    with pytest.raises(SecretKeyError, match=KEY_VARIABLE):
        keys(new).open(keys(old).seal(PLAIN, "r-1"), "r-1")


def test_token_follows_from_key_and_nonce() -> None:
    key, nonce = new_key(), new_nonce()
    token = keys(key).token(nonce)
    assert token == keys(key).token(nonce)
    assert len(token) == 43
    assert token != keys(key).token(new_nonce())
    assert token != keys().token(nonce)


def test_digest_takes_any_header_text() -> None:
    assert len(token_digest("\ud800é")) == 32
    assert token_digest("a") != token_digest("b")


@pytest.mark.parametrize(
    "text",
    ["", " , ", "!!!", "é", base64.urlsafe_b64encode(b"short").decode(), base64.urlsafe_b64encode(bytes(33)).decode()],
)
def test_what_is_no_key_is_refused_with_the_command_that_makes_one(text: str) -> None:
    with pytest.raises(SecretKeyError, match="rollbook secret-key"):
        SecretKeys.parse(text)


def test_key_file_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "secret.key"
    sealed = SecretKeys.load(path).seal(PLAIN, "r-1")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert SecretKeys.load(path).open(sealed, "r-1") == PLAIN
    assert [entry.name for entry in path.parent.iterdir()] == ["secret.key"]


def test_processes_that_start_at_once_agree_on_one_key_file(tmp_path: Path) -> None:
    path = tmp_path / "secret.key"
    start = threading.Barrier(8)
    loaded: list[SecretKeys] = []

    def load() -> None:
        start.wait(30)
        loaded.append(SecretKeys.load(path))

    threads = [threading.Thread(target=load) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    nonce = new_nonce()
    assert len(loaded) == 8
    assert len({key.token(nonce) for key in loaded}) == 1


def test_variable_wins_over_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key, nonce = new_key(), new_nonce()
    monkeypatch.setenv(KEY_VARIABLE, f" {key} ")
    assert SecretKeys.load(tmp_path / "secret.key").token(nonce) == keys(key).token(nonce)
    assert not (tmp_path / "secret.key").exists()


def test_without_variable_and_file_the_command_is_named() -> None:
    with pytest.raises(SecretKeyError, match="rollbook secret-key"):
        SecretKeys.load(None)


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"", b"not a key"])
def test_unusable_key_file_is_a_secret_key_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "secret.key").write_bytes(content)
    with pytest.raises(SecretKeyError):
        SecretKeys.load(tmp_path / "secret.key")


def test_key_path_that_cannot_be_read_is_a_secret_key_error(tmp_path: Path) -> None:
    (tmp_path / "secret.key").mkdir()
    with pytest.raises(SecretKeyError, match=r"secret\.key"):
        SecretKeys.load(tmp_path / "secret.key")


@pytest.mark.parametrize(
    "url, origin",
    [
        ("https://chat.example/v1/secret?key=secret", "https://chat.example"),
        ("http://user:secret@chat.example:8080/x", "http://chat.example:8080"),
        ("not a url", ""),
        ("http://[::1", ""),
        ("http://host:99999999/", ""),
        ("", ""),
        ("http://[::1]:80/secret", "http://[::1]:80"),
    ],
)
def test_origin_of_an_endpoint_has_no_secret_part(url: str, origin: str) -> None:
    assert endpoint_origin(url) == origin


def test_endpoint_digest_is_of_the_whole_url() -> None:
    assert endpoint_digest("https://a/\ud800") != endpoint_digest("https://a/")
    assert len(endpoint_digest("")) == 64
