"""API keys of models: sealed for the model of that name, and opened only where it is called."""

from __future__ import annotations

from ledger.sealing.keyring import Keyring
from ledger.sealing.sealed import NotSealed, open_sealed
from ledger.sealing.secret import Secret


def context_of(model: str) -> str:
    """Where the API key of that model belongs."""
    return f"models/{model}/api_key"


def open_api_key(keyring: Keyring, text: str, *, model: str) -> Secret:
    """Raises as `open_sealed`; `NotSealed` also for what is no text, as only another writer with
    the same keys can have sealed."""
    plain = open_sealed(keyring, text, context=context_of(model))
    try:
        return Secret(plain.decode())
    except UnicodeDecodeError:
        raise NotSealed from None
