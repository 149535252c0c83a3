"""Bytes too large for the log: an object store behind one seam, a folder or S3.

What comes back is what was put, or an error: every read is held against the size and the SHA-256
of its `Ref`. `ledger.objects.s3` is imported only where an address names a bucket.
"""

from ledger.objects.address import open_store
from ledger.objects.errors import (
    ContentMismatch,
    InvalidAddress,
    InvalidKey,
    MissingExtra,
    ObjectConflict,
    ObjectDamaged,
    ObjectError,
    ObjectNotFound,
    StoreUnavailable,
)
from ledger.objects.folder import FolderStore
from ledger.objects.store import (
    PAGE_MAX,
    Listed,
    ObjectStore,
    Page,
    copied,
    delete_prefix,
    require_there,
)

__all__ = [
    "PAGE_MAX",
    "ContentMismatch",
    "FolderStore",
    "InvalidAddress",
    "InvalidKey",
    "Listed",
    "MissingExtra",
    "ObjectConflict",
    "ObjectDamaged",
    "ObjectError",
    "ObjectNotFound",
    "ObjectStore",
    "Page",
    "StoreUnavailable",
    "copied",
    "delete_prefix",
    "open_store",
    "require_there",
]
