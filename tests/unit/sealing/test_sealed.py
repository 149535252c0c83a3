"""What is sealed opens in its own place with its own key, and nowhere else."""

from __future__ import annotations

import string
import traceback

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ledger.sealing.keyring import generate_key, keyring_from
from ledger.sealing.sealed import (
    PLAIN_BYTES_MAX,
    NotSealed,
    PlainTooLong,
    SealingError,
    Tampered,
    UnknownKey,
    key_id_of,
    open_sealed,
    rotate,
    seal,
)

OLD = f"old:{generate_key()}"
NEW = f"new:{generate_key()}"
BEFORE = keyring_from(OLD)
BOTH = keyring_from(f"{NEW}\n{OLD}")
AFTER = keyring_from(NEW)
PLACE = "models/gpt/api_key"
CANARY = b"canary-5e1f"

contexts = st.text(min_size=1, max_size=100)


@given(plain=st.binary(max_size=500), context=contexts)
def test_what_is_sealed_opens_to_the_same(plain: bytes, context: str) -> None:
    assert open_sealed(BEFORE, seal(BEFORE, plain, context=context), context=context) == plain


@given(context=contexts, other=contexts)
def test_a_sealed_value_cannot_be_moved_to_another_place(context: str, other: str) -> None:
    assume(other != context)
    sealed = seal(BEFORE, CANARY, context=context)
    with pytest.raises(Tampered):
        open_sealed(BEFORE, sealed, context=other)


@given(at=st.integers(0, 10_000), letter=st.sampled_from(string.ascii_letters + "09-_.~= \n"))
def test_any_change_is_noticed(at: int, letter: str) -> None:
    sealed = seal(BEFORE, CANARY, context=PLACE)
    at %= len(sealed)
    changed = sealed[:at] + letter + sealed[at + 1 :]
    assume(changed != sealed)
    with pytest.raises(SealingError):
        open_sealed(BEFORE, changed, context=PLACE)


def test_a_sealed_value_has_one_text_only() -> None:
    """The last letter of 17 bytes holds two bits that decode to nothing."""
    sealed = seal(BEFORE, b"x", context=PLACE)
    alphabet = string.ascii_uppercase + string.ascii_lowercase + string.digits + "-_"
    twin = sealed[:-1] + alphabet[alphabet.index(sealed[-1]) + 1]
    with pytest.raises(NotSealed):
        open_sealed(BEFORE, twin, context=PLACE)


@given(text=st.text(max_size=200) | st.from_regex(r"v1\.old\.[\w.-]{0,60}", fullmatch=True))
def test_any_other_text_is_not_sealed(text: str) -> None:
    with pytest.raises(SealingError) as raised:
        open_sealed(BEFORE, text, context=PLACE)
    assert len(text) < 20 or text not in str(raised.value)


def test_the_same_secret_is_never_sealed_to_the_same_text() -> None:
    assert len({seal(BEFORE, CANARY, context=PLACE) for _ in range(100)}) == 100


def test_the_form_names_version_and_key_and_hides_the_rest() -> None:
    sealed = seal(BOTH, CANARY, context=PLACE)
    version, key_id, nonce, data = sealed.split(".")
    assert (version, key_id, len(nonce)) == ("v1", "new", 16)
    assert "canary" not in data
    assert key_id_of(sealed) == "new"


def test_an_old_key_still_opens_and_only_the_newest_seals() -> None:
    old = seal(BEFORE, CANARY, context=PLACE)
    assert open_sealed(BOTH, old, context=PLACE) == CANARY
    assert key_id_of(seal(BOTH, CANARY, context=PLACE)) == "new"


def test_after_a_rotation_the_old_key_may_go() -> None:
    old = seal(BEFORE, CANARY, context=PLACE)
    new = rotate(BOTH, old, context=PLACE)
    assert open_sealed(AFTER, new, context=PLACE) == CANARY
    with pytest.raises(UnknownKey, match="old"):
        open_sealed(AFTER, old, context=PLACE)


def test_a_rotation_of_what_lies_under_the_newest_key_changes_nothing() -> None:
    sealed = seal(BOTH, CANARY, context=PLACE)
    assert rotate(BOTH, sealed, context=PLACE) == sealed


def test_a_rotation_does_not_bless_what_does_not_open() -> None:
    sealed = seal(BOTH, CANARY, context="elsewhere")
    with pytest.raises(Tampered):
        rotate(BOTH, sealed, context=PLACE)


def test_another_key_of_the_same_id_does_not_open() -> None:
    with pytest.raises(Tampered):
        open_sealed(
            keyring_from(f"old:{generate_key()}"),
            seal(BEFORE, CANARY, context=PLACE),
            context=PLACE,
        )


def test_a_renamed_key_does_not_open() -> None:
    """The key id is bound too, so a text cannot be made to name another key."""
    material = generate_key()
    sealed = seal(keyring_from(f"a:{material}"), CANARY, context=PLACE)
    with pytest.raises(Tampered):
        open_sealed(keyring_from(f"b:{material}"), sealed.replace("v1.a.", "v1.b."), context=PLACE)


def test_so_much_can_be_sealed_and_no_more() -> None:
    most = bytes(PLAIN_BYTES_MAX)
    assert open_sealed(BEFORE, seal(BEFORE, most, context=PLACE), context=PLACE) == most
    with pytest.raises(PlainTooLong):
        seal(BEFORE, most + b"x", context=PLACE)


@pytest.mark.parametrize("context", ["", "x" * 513])
def test_a_context_is_never_left_out(context: str) -> None:
    with pytest.raises(ValueError, match="context"):
        seal(BEFORE, CANARY, context=context)


def test_no_error_shows_what_was_to_be_opened() -> None:
    """Plain text that was never sealed is the likely case: somebody put a key where a seal was
    expected."""
    secret = CANARY.decode()
    sealed = seal(BEFORE, CANARY, context=PLACE)
    for keyring, text, context in (
        (BEFORE, secret, PLACE),
        (BEFORE, f"v1.old.{secret}", PLACE),
        (AFTER, sealed, PLACE),
        (BEFORE, sealed, "elsewhere"),
    ):
        with pytest.raises(SealingError) as raised:
            open_sealed(keyring, text, context=context)
        shown = "".join(traceback.format_exception(raised.value)) + repr(raised.value)
        assert secret not in shown
