"""Which object store an address names."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from ledger.objects.errors import InvalidAddress
from ledger.objects.folder import FolderStore
from ledger.objects.store import ObjectStore

OPTIONS = ("endpoint", "region", "public")


def open_store(address: str) -> ObjectStore:
    """The store that LEDGER_OBJECTS names: a folder (`./objects`, `/srv/objects`,
    `file:///srv/objects`) or `s3://bucket[/prefix][?endpoint=URL&region=NAME&public=URL]`.

    Nothing is reached or made yet. Raises `InvalidAddress`, and `MissingExtra` where S3 is named
    and boto3 is not installed.
    """
    if not address:
        raise InvalidAddress("an empty LEDGER_OBJECTS names no object store")
    if "\0" in address:
        raise InvalidAddress(f"LEDGER_OBJECTS={address!r}: a path has no NUL")
    scheme, colon, _ = address.partition("://")
    if not colon:
        return FolderStore(Path(address))
    try:
        parts = urlsplit(address)
    except ValueError as error:
        raise InvalidAddress(f"LEDGER_OBJECTS={address}: {error}") from None
    match scheme.lower():
        case "file":
            if parts.netloc not in ("", "localhost") or parts.query or not parts.path:
                raise InvalidAddress(
                    f"LEDGER_OBJECTS={address}: a folder is written file:///path or ./path"
                )
            return FolderStore(Path(unquote(parts.path)))
        case "s3":
            if not parts.netloc or "@" in parts.netloc or ":" in parts.netloc:
                # Not shown: what stands before @ is a secret.
                raise InvalidAddress(
                    "LEDGER_OBJECTS: a bucket is written s3://bucket/prefix; credentials go into"
                    " AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a server into ?endpoint="
                )
            return _bucket(parts.netloc, unquote(parts.path), _options(parts.query))
        case _:
            raise InvalidAddress(
                f"LEDGER_OBJECTS={address}: {scheme}:// is not known; write a folder or s3://bucket"
            )


def _bucket(bucket: str, prefix: str, options: dict[str, str]) -> ObjectStore:
    # boto3 is an extra.
    from ledger.objects.s3 import S3Store

    return S3Store(
        bucket,
        prefix,
        endpoint_url=options.get("endpoint"),
        region=options.get("region"),
        public_url=options.get("public"),
    )


def _options(query: str) -> dict[str, str]:
    options = dict(parse_qsl(query, keep_blank_values=True))
    for name, value in options.items():
        if name not in OPTIONS:
            close = get_close_matches(name, OPTIONS, n=1)
            advice = f"did you mean {close[0]}?" if close else f"there are {', '.join(OPTIONS)}"
            raise InvalidAddress(f"LEDGER_OBJECTS: no option {name}: {advice}")
        if name != "region" and urlsplit(value).scheme not in ("http", "https"):
            raise InvalidAddress(f"LEDGER_OBJECTS: {name}={value} is no http:// or https:// URL")
    return options
