"""What goes wrong with objects. Each text says what is known and what to do."""

from __future__ import annotations


class ObjectError(Exception):
    """The object store did not do as asked."""


class ObjectNotFound(ObjectError):
    """Nothing lies under the key."""

    def __init__(self, key: str) -> None:
        super().__init__(
            f"no object {key}: it has expired, was removed with its owner, or was lost;"
            " if it is still wanted, restore it from a backup of the store or rerun the job"
        )
        self.key = key


class ObjectDamaged(ObjectError):
    """The bytes under the key are not those that were put. Trying again does not help."""

    def __init__(self, key: str, fault: str) -> None:
        super().__init__(
            f"object {key} is damaged: {fault};"
            " restore it from a backup of the store or rerun the job"
        )
        self.key = key


class ObjectConflict(ObjectError):
    """Other bytes lie under the key already, and stay."""

    def __init__(self, key: str) -> None:
        super().__init__(
            f"object {key} exists with other content: an object never changes;"
            " put the new content under a key of its own"
        )
        self.key = key


class ContentMismatch(ObjectError):
    """The bytes given are not those that `size` and `sha256` announced. Nothing was put."""

    def __init__(self, key: str, fault: str) -> None:
        super().__init__(f"the bytes given for object {key} are not those announced: {fault}")
        self.key = key


class InvalidKey(ObjectError, ValueError):
    """No object can have this key."""

    def __init__(self, key: str, why: str) -> None:
        super().__init__(f"{key!r} cannot be an object's key: {why}")
        self.key = key


class StoreUnavailable(ObjectError):
    """The store gave no answer, or none that counts. What was asked may have happened or not;
    asking for the same again is safe."""


class InvalidAddress(ObjectError, ValueError):
    """What LEDGER_OBJECTS says is no address of an object store."""


class MissingExtra(ObjectError, ImportError):
    """A library that this store needs is not installed."""
