"""A key ring is read from text or a file, and shows no key."""

from __future__ import annotations

import json
import secrets
from base64 import b64decode, b64encode, urlsafe_b64encode
from pathlib import Path

import pytest

from ledger.sealing.keyring import (
    KEYS_MAX,
    KeyringInvalid,
    generate_key,
    keyring_from,
    read_keyring,
)
from ledger.sealing.sealed import open_sealed, seal

CANARY = b64encode(b"canary-canary-canary-canary-cana").decode()
assert len(b64decode(CANARY)) == 32


def test_a_generated_key_is_32_random_bytes() -> None:
    keys = {generate_key() for _ in range(50)}
    assert len(keys) == 50
    assert {len(b64decode(key)) for key in keys} == {32}


def test_lines_are_keys_with_the_newest_first() -> None:
    keyring = keyring_from(f"\n# of 2026\nnew:{generate_key()}\r\n  old : {generate_key()}  \n\n")
    assert keyring.key_ids == ("new", "old")
    assert keyring.newest.key_id == "new"


def test_json_says_the_same_as_lines() -> None:
    new, old = generate_key(), generate_key()
    lines = keyring_from(f"new:{new}\nold:{old}")
    text = json.dumps([{"id": "new", "key": new}, {"id": "old", "key": old}])
    sealed = seal(lines, b"x", context="c")
    assert keyring_from(f"  {text}\n").key_ids == ("new", "old")
    assert open_sealed(keyring_from(text), sealed, context="c") == b"x"


def test_base64_of_either_alphabet_with_or_without_padding_is_the_same_key() -> None:
    data = b"\xfb\xff" * 16
    sealed = seal(keyring_from(f"k:{b64encode(data).decode()}"), b"x", context="c")
    for text in (urlsafe_b64encode(data), urlsafe_b64encode(data).rstrip(b"=")):
        assert open_sealed(keyring_from(f"k:{text.decode()}"), sealed, context="c") == b"x"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no key"),
        ("# nothing yet\n", "no key"),
        ("[]", "no key"),
        (CANARY, "line 1 is not of the form"),
        (f"{CANARY}:k1", "line 1: an id has"),
        (f"{CANARY.rstrip('=')}:k1", "line 1: the key"),
        (f"\nk 1:{CANARY}", "line 2: an id has"),
        (f"k1:{CANARY}!", "line 1: the key is not base64"),
        (f"k1:{CANARY}\u00e9", "line 1: the key is not base64"),
        (f"k1:{CANARY[:20]}", "line 1: the key has 15 bytes; it takes 32"),
        (f"k1:{b64encode(bytes(32)).decode()}", "not a random one"),
        (f"k1:{CANARY}\nk1:{CANARY}", "same id"),
        (f'["{CANARY}"]', "not of the form"),
        (f'[{{"id": "k1", "key": "{CANARY}", "more": 1}}]', "not of the form"),
        (f'[{{"id": "k1", "key": "{CANARY}"', "begins like JSON"),
        (f'[{{"id": "k1", "key": "{CANARY}", "key": "{CANARY}"}}]', "begins like JSON"),
        (f'[{{"id": "k1", "key": "\ud800{CANARY}"}}]', "begins like JSON"),
        (f'[{{"id": "k1", "key": "{CANARY[:20]}"}}]', "key 1: the key has 15 bytes"),
        ("k1:" + CANARY * 2000, "no key ring"),
        (
            "\n".join(
                f"k{n}:{b64encode(secrets.token_bytes(32)).decode()}" for n in range(KEYS_MAX + 1)
            ),
            "65 keys",
        ),
    ],
)
def test_what_is_wrong_is_said_without_any_of_the_text(text: str, message: str) -> None:
    with pytest.raises(KeyringInvalid, match=message) as raised:
        keyring_from(text)
    for shown in (str(raised.value), repr(raised.value), repr(raised.value.args)):
        assert CANARY[:12] not in shown
    assert raised.value.__suppress_context__ or raised.value.__context__ is None


def test_a_file_is_read_like_text(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"k1:{CANARY}\n")
    assert read_keyring(path).key_ids == ("k1",)


@pytest.mark.parametrize("content", [None, b"\xff\xfe", b"k1:short", b"#" * 70_000])
def test_a_file_that_is_none_is_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "keys"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(KeyringInvalid, match=str(path)):
        read_keyring(path)


def test_neither_key_ring_nor_key_shows_key_material() -> None:
    keyring = keyring_from(f"k1:{CANARY}")
    data = b64decode(CANARY)
    for shown in (repr(keyring), str(keyring), repr(keyring.newest), str(keyring.newest)):
        assert "k1" in shown
        assert CANARY[:12] not in shown
        assert "canary" not in shown
    held = [getattr(keyring.newest, name) for name in keyring.newest.__slots__]
    assert data not in held
