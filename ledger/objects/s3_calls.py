"""Calls of S3: each in a thread, each bounded, each failure as one of ours.

A call is bounded three times: by the socket's time-outs, by the number of its repeats, and as a
whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

from ledger.objects.errors import InvalidAddress, MissingExtra, StoreUnavailable
from ledger.objects.threads import Threads

try:
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError
except ImportError as missing:
    raise MissingExtra(
        "objects in S3 need boto3: install the extra that carries it, pip install 'job-ledger[s3]'"
    ) from missing

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

T = TypeVar("T")

AMAZON = (".amazonaws.com", ".amazonaws.com.cn")


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Bounds:
    connect_seconds: float = 3.0
    read_seconds: float = 10.0
    """Without a byte from the server."""
    attempts: int = 3
    """Of one call, the first included; with growing pauses between."""
    call_seconds: float = 45.0
    """Of one call with all its attempts."""
    threads: int = 8
    """Calls at once."""


class Refusal(Exception):
    """What the server said instead of doing it."""

    def __init__(self, error: ClientError) -> None:
        super().__init__(str(error))
        self.code: str = error.response.get("Error", {}).get("Code", "")
        self.status: int = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)


class S3Calls:
    """`client` signs and sends, `signer` only signs, for those who can reach that address."""

    def __init__(
        self,
        bucket: str,
        *,
        endpoint_url: str | None,
        region: str | None,
        public_url: str | None,
        bounds: S3Bounds,
    ) -> None:
        self._bounds = bounds
        self._threads = Threads(bounds.threads)
        config = Config(
            signature_version="s3v4",
            connect_timeout=bounds.connect_seconds,
            read_timeout=bounds.read_seconds,
            retries={"mode": "standard", "total_max_attempts": bounds.attempts},
            max_pool_connections=bounds.threads,
            # Digests are ours; servers that know no others refuse what boto3 adds by itself.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        )

        session = boto3.session.Session()

        def client(url: str | None) -> S3Client:
            try:
                return session.client("s3", endpoint_url=url, region_name=region, config=config)
            except (ValueError, BotoCoreError) as error:
                raise InvalidAddress(f"no client of S3 can be made: {error}") from error

        self.client = client(endpoint_url)
        self._where = f"s3://{bucket} at {self.client.meta.endpoint_url}"
        host = urlsplit(self.client.meta.endpoint_url).hostname or ""
        self.signer: S3Client | None = None
        if public_url:
            self.signer = client(public_url)
        elif host.endswith(AMAZON):
            self.signer = self.client

    async def made(self, do: Callable[[], T]) -> T:
        """Raises `StoreUnavailable` for any refusal."""
        try:
            return await self.tried(do)
        except Refusal as refusal:
            raise self.unavailable(refusal) from refusal

    async def tried(self, do: Callable[[], T], unwanted: Callable[[T], object] | None = None) -> T:
        """Raises `Refusal`, and `StoreUnavailable` where no answer came. `unwanted` gets one that
        comes when nobody waits for it any more."""
        try:
            async with asyncio.timeout(self._bounds.call_seconds):
                return await self._threads.run(do, unwanted)
        except ClientError as error:
            raise Refusal(error) from error
        except TimeoutError:
            raise StoreUnavailable(
                f"{self._where} gave no answer within {self._bounds.call_seconds:g} s;"
                " look whether it is overloaded"
            ) from None
        except NoCredentialsError as error:
            raise StoreUnavailable(
                f"no credentials for {self._where}: set AWS_ACCESS_KEY_ID and"
                " AWS_SECRET_ACCESS_KEY, a profile, or a role of the machine"
            ) from error
        except BotoCoreError as error:
            raise StoreUnavailable(
                f"{self._where} gave no answer: {error}; look whether it runs and can be reached"
            ) from error

    def unavailable(self, refusal: Refusal) -> StoreUnavailable:
        said = f"{self._where} answered {refusal.status} {refusal.code}"
        if refusal.code in ("NoSuchBucket", "404"):
            return StoreUnavailable(f"{said}: make the bucket, or name another in LEDGER_OBJECTS")
        if refusal.status in (401, 403):
            return StoreUnavailable(
                f"{said}: check the credentials, the clock, and the rights to get, put, delete"
                " and list"
            )
        if refusal.status >= 500 or refusal.status == 429:
            return StoreUnavailable(f"{said}: it is overloaded or broken; try again later")
        return StoreUnavailable(f"{said}: {refusal}")

    def close(self) -> None:
        # A call that nobody waits for any more may be repeated by the client, which connects anew.
        self._threads.close(then=self._close_clients)

    def _close_clients(self) -> None:
        self.client.close()
        if self.signer is not None:
            self.signer.close()
