"""Secret keys, sealed secrets and polling tokens.

A rollout's API key and chat URL (often a capability) lie encrypted beside the ledger until the rollout is over. A
polling token is an HMAC over a nonce that the admission event keeps, so an admission repeated under an idempotency
rule can give the same token again, and only nonce and digest are ever stored.
"""

from __future__ import annotations

import base64
import contextlib
import hmac
import os
import secrets as entropy
from functools import cached_property, lru_cache
from hashlib import sha256
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_VARIABLE = "ROLLBOOK_SECRET_KEY"
KEY_BYTES = 32
NONCE_BYTES = 12
_REQUEST = b"rollbook request\0"
"""Keeps what is made of a request apart from what is made of a nonce."""
_FINGERPRINT = b"rollbook fingerprint\0"


class SecretKeyError(Exception):
    """The secret key is missing or unreadable; the message says how to make one."""


class RolloutSecrets(msgspec.Struct, frozen=True):
    """What a rollout's execution needs and no record may show."""

    chat_completions_url: str
    llm_api_key: str | None = None


def new_key() -> str:
    """A fresh key in the text form of ``ROLLBOOK_SECRET_KEY``."""
    return base64.urlsafe_b64encode(entropy.token_bytes(KEY_BYTES)).decode()


class SecretKeys:
    """The keys in use: the first seals and signs, all of them open (rotation)."""

    def __init__(self, keys: tuple[bytes, ...], *, source: str = KEY_VARIABLE) -> None:
        if not keys:
            raise SecretKeyError(f"no secret key; set {KEY_VARIABLE} to the output of `rollbook secret-key`")
        self._signing = [sha256(b"rollbook lease" + key).digest() for key in keys]
        self._ciphers = [AESGCM(key) for key in keys]
        self.source = source
        """Where they come from: the variable, or a file's path."""

    @classmethod
    def parse(cls, text: str, *, source: str = KEY_VARIABLE) -> SecretKeys:
        """Keys from text: one or several, separated by commas.

        Raises:
            SecretKeyError: not url-safe base64 of 32 bytes.
        """
        keys = []
        for part in filter(None, (piece.strip() for piece in text.split(","))):
            try:
                key = base64.urlsafe_b64decode(part)
            except ValueError as error:
                raise SecretKeyError(f"{KEY_VARIABLE} is not base64; make one with `rollbook secret-key`") from error
            if len(key) != KEY_BYTES:
                raise SecretKeyError(
                    f"a secret key has {KEY_BYTES} bytes, this one {len(key)}; make one with `rollbook secret-key`"
                )
            keys.append(key)
        return cls(tuple(keys), source=source)

    @classmethod
    def load(cls, key_file: Path | None) -> SecretKeys:
        """Keys from the environment, else from ``key_file``, which is made (mode 0600) where it does not exist.

        Raises:
            SecretKeyError: no key is set, or the file cannot be read or made, or holds none.
        """
        if key_is_set():
            return cls.parse(os.environ[KEY_VARIABLE])
        if key_file is None:
            raise SecretKeyError(f"set {KEY_VARIABLE}, the same for all processes; `rollbook secret-key` makes one")
        try:
            text = _read_or_make(key_file)
        except (OSError, UnicodeDecodeError) as error:
            raise SecretKeyError(
                f"cannot use the key file {key_file}: {error}; make it readable, or set {KEY_VARIABLE}"
            ) from error
        return cls.parse(text, source=str(key_file))

    @cached_property
    def fingerprints(self) -> tuple[str, ...]:
        """What tells each key from others, in their order; 64 hex digits. Nobody can go back from it to the key."""
        return tuple(sha256(hmac.digest(key, _FINGERPRINT, "sha256")).hexdigest() for key in self._signing)

    def token(self, nonce: str) -> str:
        """The polling token for a nonce; 43 characters."""
        return _token(self._signing[0], nonce)

    def leases_for(self, request: bytes) -> tuple[tuple[str, str], ...]:
        """Nonce and token that follow from a request alone, with each of the keys, the one that signs first.

        Nobody without the keys can tell from a nonce what it was made of.
        """
        nonces = (hmac.digest(key, _REQUEST + request, "sha256")[:16].hex() for key in self._signing)
        return tuple((nonce, _token(key, nonce)) for key, nonce in zip(self._signing, nonces, strict=True))

    def seal(self, plain: RolloutSecrets, rollout_id: str) -> bytes:
        """Encrypted and bound to its rollout: a sealed secret moved to another one does not open."""
        nonce = os.urandom(NONCE_BYTES)
        return nonce + self._ciphers[0].encrypt(nonce, msgspec.json.encode(plain), rollout_id.encode())

    def open(self, sealed: bytes, rollout_id: str) -> RolloutSecrets:
        """The secrets again.

        Raises:
            SecretKeyError: none of the keys fits.
        """
        nonce, data = sealed[:NONCE_BYTES], sealed[NONCE_BYTES:]
        for cipher in self._ciphers:
            try:
                plain = cipher.decrypt(nonce, data, rollout_id.encode())
            except InvalidTag:
                continue
            return msgspec.json.decode(plain, type=RolloutSecrets)
        raise SecretKeyError(
            f"none of the secret keys opens the secrets of rollout {rollout_id!r}; "
            f"put the key it was admitted with into {KEY_VARIABLE} too"
        )


def key_is_set() -> bool:
    """Whether the environment has a key."""
    return bool(os.environ.get(KEY_VARIABLE, "").strip())


def new_nonce() -> str:
    """A lease's nonce; 32 hex digits."""
    return entropy.token_hex(16)


def token_digest(token: str) -> bytes:
    """What of a token is stored and compared; 32 bytes."""
    return sha256(token.encode("utf-8", "surrogatepass")).digest()


@lru_cache(maxsize=512)
def endpoint_origin(url: str) -> str:
    """Scheme and host of a URL, without user, port's secrets, path or query; empty where there is none."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return ""
    if not parts.scheme or not host:
        return ""
    if ":" in host:
        host = f"[{host}]"
    return f"{parts.scheme}://{host}" + (f":{port}" if port else "")


@lru_cache(maxsize=512)
def endpoint_digest(url: str) -> str:
    """SHA-256 of the whole URL, hex."""
    return sha256(url.encode("utf-8", "surrogatepass")).hexdigest()


def _token(key: bytes, nonce: str) -> str:
    digest = hmac.digest(key, nonce.encode(), "sha256")
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def _read_or_make(path: Path) -> str:
    try:
        return path.read_text()
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
    # Written aside and linked into place: another process starting now sees no file or a whole one, and one wins.
    draft = path.with_name(f"{path.name}.{os.getpid()}.{entropy.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(new_key() + "\n")
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
    finally:
        draft.unlink()
    return path.read_text()
