"""API keys of models open for the model that they are of, and for no other."""

from __future__ import annotations

import pytest

from ledger.sealing.api_keys import context_of, open_api_key
from ledger.sealing.keyring import generate_key, keyring_from
from ledger.sealing.sealed import NotSealed, Tampered, seal

pytestmark = pytest.mark.rule("S4.1")
KEYRING = keyring_from(f"k:{generate_key()}")


def test_a_key_opens_for_its_model_alone() -> None:
    sealed = seal(KEYRING, "sk-ü".encode(), context=context_of("gpt"))
    assert open_api_key(KEYRING, sealed, model="gpt").reveal() == "sk-ü"
    with pytest.raises(Tampered):
        open_api_key(KEYRING, sealed, model="gpt2")


def test_what_is_no_text_is_no_key() -> None:
    sealed = seal(KEYRING, b"\xff", context=context_of("gpt"))
    with pytest.raises(NotSealed):
        open_api_key(KEYRING, sealed, model="gpt")
