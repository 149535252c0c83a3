"""Objects in a bucket of S3, or of a server that speaks S3."""

from __future__ import annotations

import secrets
from base64 import b64encode
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Sequence
from contextlib import aclosing, suppress
from functools import partial
from hashlib import sha256 as new_sha256
from typing import TYPE_CHECKING
from urllib.parse import quote

from ledger.domain.events import Ref
from ledger.domain.ids import Micros, micros_of
from ledger.objects.checked_keys import KEY_BYTES_MAX, checked_key
from ledger.objects.content import PIECE_BYTES, announced, cut, joined, verified
from ledger.objects.errors import (
    ContentMismatch,
    InvalidAddress,
    InvalidKey,
    ObjectConflict,
    ObjectDamaged,
    ObjectError,
    ObjectNotFound,
    StoreUnavailable,
)
from ledger.objects.s3_calls import Refusal, S3Bounds, S3Calls
from ledger.objects.store import PAGE_MAX, Listed, Page, checked_limit, checked_prefix

if TYPE_CHECKING:
    from botocore.response import StreamingBody
    from mypy_boto3_s3.type_defs import (
        CompletedPartTypeDef,
        CompleteMultipartUploadRequestTypeDef,
        GetObjectRequestTypeDef,
        ListMultipartUploadsRequestTypeDef,
        PutObjectRequestTypeDef,
    )

PART_BYTES = 8 * 1024 * 1024
"""An object above this goes up in parts of this size."""
PARTS_MAX = 10_000
PREFIX_BYTES_MAX = 256
READ_TRIES_MAX = 3
"""Of going on with a download that was cut."""
LINK_SECONDS_MAX = 7 * 86_400
"""As long as S3 lets a signature live."""
PROBE = ".check-"
TAKEN = {"PreconditionFailed", "ConditionalRequestConflict", "NoSuchUpload"}
"""Answers to a put that may be the echo of the same put, whose first answer was lost."""


class S3Store:
    """Credentials come from where boto3 looks: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a
    profile, or the machine's role. The bucket must exist.

    `endpoint_url` names another server than Amazon's; its links are only given if `public_url`
    says under which address clients reach it.
    """

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        *,
        endpoint_url: str | None = None,
        region: str | None = None,
        public_url: str | None = None,
        bounds: S3Bounds | None = None,
    ) -> None:
        self._bucket = bucket
        self._prefix = _folder(prefix)
        self._calls = S3Calls(
            bucket,
            endpoint_url=endpoint_url,
            region=region,
            public_url=public_url,
            bounds=bounds or S3Bounds(),
        )
        self._client = self._calls.client
        self._conditional: bool | None = None
        """Whether the server keeps a condition on a put; None: not tried yet."""

    # --- Writing --------------------------------------------------------------------------------
    async def put(
        self, key: str, data: bytes | AsyncIterable[bytes], *, sha256: str, size: int
    ) -> Ref:
        ref = announced(key, size, sha256)
        name = self._name(key)
        if size > PART_BYTES * PARTS_MAX:
            raise ValueError(f"{size} bytes: an object has at most {PART_BYTES * PARTS_MAX}")
        conditional = await self._keeps_conditions()
        if not conditional and await self._exists(name):
            await self._settle(ref)
            return ref
        async with aclosing(verified(cut(data, PIECE_BYTES), ref, ContentMismatch)) as pieces:
            if size <= PART_BYTES:
                taken = await self._put_whole(name, await joined(pieces), ref, conditional)
            else:
                taken = await self._put_parts(name, pieces, conditional)
        if taken:
            await self._settle(ref)
        return ref

    async def _put_whole(self, name: str, body: bytes, ref: Ref, conditional: bool) -> bool:
        """Whether something lay there already."""
        request: PutObjectRequestTypeDef = {
            "Bucket": self._bucket,
            "Key": name,
            "Body": body,
            "ChecksumSHA256": b64encode(bytes.fromhex(ref.sha256)).decode(),
        }
        if conditional:
            request["IfNoneMatch"] = "*"
        return not await self._unless_taken(partial(self._client.put_object, **request))

    async def _put_parts(
        self, name: str, pieces: AsyncGenerator[bytes, None], conditional: bool
    ) -> bool:
        """Whether something lay there already. Parts are nothing until they are completed."""
        started = await self._calls.made(
            lambda: self._client.create_multipart_upload(
                Bucket=self._bucket, Key=name, ChecksumAlgorithm="SHA256"
            )
        )
        upload_id = started["UploadId"]
        try:
            parts: list[CompletedPartTypeDef] = []
            async with aclosing(cut(pieces, PART_BYTES)) as bodies:
                async for body in bodies:
                    number = len(parts) + 1
                    parts.append(
                        await self._calls.made(
                            partial(self._upload_part, name, upload_id, number, body)
                        )
                    )
            request: CompleteMultipartUploadRequestTypeDef = {
                "Bucket": self._bucket,
                "Key": name,
                "UploadId": upload_id,
                "MultipartUpload": {"Parts": parts},
            }
            if conditional:
                request["IfNoneMatch"] = "*"
            done = await self._unless_taken(
                partial(self._client.complete_multipart_upload, **request)
            )
        except BaseException:
            await self._undo(name, upload_id)
            raise
        if not done:
            await self._undo(name, upload_id)
        return not done

    def _upload_part(
        self, name: str, upload_id: str, number: int, body: bytes
    ) -> CompletedPartTypeDef:
        digest = b64encode(new_sha256(body).digest()).decode()
        answer = self._client.upload_part(
            Bucket=self._bucket,
            Key=name,
            UploadId=upload_id,
            PartNumber=number,
            Body=body,
            ChecksumSHA256=digest,
        )
        return {"PartNumber": number, "ETag": answer["ETag"], "ChecksumSHA256": digest}

    async def _undo(self, name: str, upload_id: str) -> None:
        """What this cannot remove, `sweep_unfinished` will."""
        with suppress(ObjectError):
            await self._abort(name, upload_id)

    async def _abort(self, name: str, upload_id: str) -> None:
        try:
            await self._calls.tried(
                lambda: self._client.abort_multipart_upload(
                    Bucket=self._bucket, Key=name, UploadId=upload_id
                )
            )
        except Refusal as refusal:
            if refusal.code != "NoSuchUpload":
                raise self._calls.unavailable(refusal) from refusal

    async def _unless_taken(self, do: Callable[[], object]) -> bool:
        """Whether it was done."""
        try:
            await self._calls.tried(do)
        except Refusal as refusal:
            if refusal.code in TAKEN:
                return False
            raise self._calls.unavailable(refusal) from refusal
        return True

    async def _settle(self, ref: Ref) -> None:
        """Something lies there: fine if it is the same. It is read to know: that is rare, and an
        object that is reported as put must be readable."""
        try:
            async for _ in self.stream(ref):
                pass
        except ObjectDamaged:
            raise ObjectConflict(ref.key) from None
        except ObjectNotFound:
            raise StoreUnavailable(
                f"object {ref.key} was removed while it was put; put it again"
            ) from None

    async def _keeps_conditions(self) -> bool:
        """Tried once: there are servers that refuse a condition and others that overlook it. Two
        writers of one key can then overwrite each other; ours write the same."""
        if self._conditional is None:
            request: PutObjectRequestTypeDef = {
                "Bucket": self._bucket,
                "Key": f"{self._prefix}{PROBE}{secrets.token_hex(8)}",
                "Body": b"",
            }
            put = self._client.put_object
            await self._calls.made(partial(put, **request))
            request["IfNoneMatch"] = "*"
            try:
                await self._calls.tried(partial(put, **request))
                self._conditional = False
            except Refusal as refusal:
                if refusal.status >= 500 and refusal.status != 501:
                    raise self._calls.unavailable(refusal) from refusal
                self._conditional = refusal.code == "PreconditionFailed"
            await self._calls.made(
                lambda: self._client.delete_object(Bucket=self._bucket, Key=request["Key"])
            )
        return self._conditional

    async def _exists(self, name: str) -> bool:
        try:
            await self._calls.tried(lambda: self._client.head_object(Bucket=self._bucket, Key=name))
        except Refusal as refusal:
            if refusal.status == 404:
                return False
            raise self._calls.unavailable(refusal) from refusal
        return True

    # --- Reading --------------------------------------------------------------------------------
    async def get(self, ref: Ref) -> bytes:
        return await joined(self.stream(ref))

    def stream(self, ref: Ref) -> AsyncGenerator[bytes, None]:
        return verified(self._pieces(ref, self._name(ref.key)), ref, ObjectDamaged)

    async def _pieces(self, ref: Ref, name: str) -> AsyncGenerator[bytes, None]:
        """A download that is cut goes on where it was."""
        size = 0
        tries = 0
        body = await self._open(ref, name, size)
        try:
            while size < ref.size:
                try:
                    piece = await self._calls.made(partial(body.read, PIECE_BYTES))
                except StoreUnavailable:
                    tries += 1
                    if tries == READ_TRIES_MAX:
                        raise
                    body.close()
                    body = await self._open(ref, name, size)
                    continue
                if not piece:
                    return
                size += len(piece)
                yield piece
        finally:
            body.close()

    async def _open(self, ref: Ref, name: str, start: int) -> StreamingBody:
        request: GetObjectRequestTypeDef = {"Bucket": self._bucket, "Key": name}
        if start:
            request["Range"] = f"bytes={start}-"
        try:
            answer = await self._calls.tried(
                partial(self._client.get_object, **request),
                unwanted=lambda late: late["Body"].close(),
            )
        except Refusal as refusal:
            if refusal.code in ("NoSuchKey", "404"):
                raise ObjectNotFound(ref.key) from None
            raise self._calls.unavailable(refusal) from refusal
        size = start + answer["ContentLength"]
        if size != ref.size:
            answer["Body"].close()
            raise ObjectDamaged(ref.key, f"{size} bytes of {ref.size}")
        return answer["Body"]

    async def link(self, ref: Ref, seconds: int, *, filename: str | None = None) -> str | None:
        signer = self._calls.signer
        if signer is None:
            return None
        if not 1 <= seconds <= LINK_SECONDS_MAX:
            raise ValueError(f"a link lives 1 to {LINK_SECONDS_MAX} seconds, not {seconds}")
        params = {"Bucket": self._bucket, "Key": self._name(ref.key)}
        if filename is not None:
            params["ResponseContentDisposition"] = (
                f"attachment; filename*=UTF-8''{quote(filename, safe='')}"
            )
        return await self._calls.made(
            lambda: signer.generate_presigned_url("get_object", Params=params, ExpiresIn=seconds)
        )

    async def listing(
        self, prefix: str, after: str | None = None, *, limit: int = PAGE_MAX
    ) -> Page:
        checked_limit(limit)
        top = f"{self._prefix}{checked_prefix(prefix)}"
        start = f"{self._prefix}{after}" if after else ""
        answer = await self._calls.made(
            lambda: self._client.list_objects_v2(
                Bucket=self._bucket, Prefix=top, StartAfter=start, MaxKeys=limit
            )
        )
        objects = tuple(
            Listed(
                found["Key"].removeprefix(self._prefix),
                found["Size"],
                micros_of(found["LastModified"]),
            )
            for found in answer.get("Contents", ())
        )
        more = answer["IsTruncated"] and objects
        return Page(objects, objects[-1].key if more else None)

    # --- Removing -------------------------------------------------------------------------------
    async def delete(self, key: str) -> None:
        name = self._name(key)
        await self._calls.made(lambda: self._client.delete_object(Bucket=self._bucket, Key=name))

    async def delete_many(self, keys: Sequence[str]) -> None:
        if not keys:
            return
        checked_limit(len(keys))
        names = [self._name(key) for key in keys]
        answer = await self._calls.made(
            lambda: self._client.delete_objects(
                Bucket=self._bucket,
                Delete={"Objects": [{"Key": name} for name in names], "Quiet": True},
            )
        )
        failed = [one for one in answer.get("Errors", ()) if one.get("Code") != "NoSuchKey"]
        if failed:
            first = failed[0]
            raise StoreUnavailable(
                f"s3://{self._bucket} did not delete {len(failed)} of {len(keys)} objects, first"
                f" {first.get('Key')}: {first.get('Code')} {first.get('Message')};"
                " delete them again"
            )

    async def sweep_unfinished(self, before: Micros) -> int:
        swept = 0
        request: ListMultipartUploadsRequestTypeDef = {
            "Bucket": self._bucket,
            "Prefix": self._prefix,
        }
        while True:
            answer = await self._calls.made(partial(self._client.list_multipart_uploads, **request))
            for upload in answer.get("Uploads", ()):
                if micros_of(upload["Initiated"]) < before:
                    await self._abort(upload["Key"], upload["UploadId"])
                    swept += 1
            if not answer.get("IsTruncated"):
                return swept
            request["KeyMarker"] = answer["NextKeyMarker"]
            request["UploadIdMarker"] = answer["NextUploadIdMarker"]

    # --- Its own state --------------------------------------------------------------------------
    async def check(self) -> None:
        """Writes at the first time only; later, that the bucket answers is enough."""
        await self._keeps_conditions()
        await self._calls.made(lambda: self._client.head_bucket(Bucket=self._bucket))

    async def close(self) -> None:
        self._calls.close()

    def _name(self, key: str) -> str:
        name = f"{self._prefix}{checked_key(key)}"
        if len(name.encode()) > KEY_BYTES_MAX:
            raise InvalidKey(key, f"with the store's prefix it takes more than {KEY_BYTES_MAX}")
        return name


def _folder(prefix: str) -> str:
    """As it stands in front of keys: empty, or ending in a slash."""
    if not (name := prefix.strip("/")):
        return ""
    try:
        checked_key(name)
    except InvalidKey as error:
        raise InvalidAddress(f"the prefix of a bucket: {error}") from None
    if len(name.encode()) >= PREFIX_BYTES_MAX:
        raise InvalidAddress(f"the prefix {name} is longer than {PREFIX_BYTES_MAX} bytes")
    return f"{name}/"
