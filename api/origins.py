"""Which page a browser asks for."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit


def is_cross_site(headers: Mapping[str, str]) -> bool:
    """Whether a page of another origin has made its browser ask. Other clients say nothing."""
    site = headers.get("sec-fetch-site")
    origin = headers.get("origin")
    if site is not None:
        return site not in ("same-origin", "none")
    return origin is not None and urlsplit(origin).netloc != headers.get("host")
