"""What LEDGER_OBJECTS may say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ledger.objects import FolderStore, InvalidAddress, MissingExtra, open_store
from ledger.objects.s3 import S3Store
from tests.support.object_store_suite import put


@pytest.mark.parametrize(
    "address", ["./objects", "objects", "{here}/objects", "file://{here}/objects"]
)
async def test_a_path_is_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.chdir(tmp_path)
    store = open_store(address.format(here=tmp_path))
    assert isinstance(store, FolderStore)
    await put(store, key="a/b")
    await store.close()
    assert (tmp_path / "objects/a/b").is_file()


async def test_a_folder_with_a_blank_is_written_as_addresses_are(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}/my%20objects")
    await put(store, key="a/b")
    await store.close()
    assert (tmp_path / "my objects/a/b").is_file()


@pytest.mark.parametrize(
    "address",
    [
        "s3://bucket",
        "s3://bucket/some/prefix/",
        "s3://bucket?region=eu-central-1",
        "s3://bucket/p?endpoint=http://127.0.0.1:7070&region=us-east-1&public=https://files.example",
    ],
)
async def test_a_bucket_is_s3(address: str) -> None:
    store = open_store(address)
    assert isinstance(store, S3Store)
    await store.close()


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("", "empty"),
        ("a\0b", "NUL"),
        ("gs://bucket", "gs://"),
        ("http://127.0.0.1:9000/bucket", "s3://bucket"),
        ("file://elsewhere/objects", "file:///path"),
        ("file://", "file:///path"),
        ("file:///objects?x=1", "file:///path"),
        ("s3://", "s3://bucket/prefix"),
        ("s3:///prefix", "s3://bucket/prefix"),
        ("s3://bucket:9000", "endpoint"),
        ("s3://bucket?endpiont=http://a", "did you mean endpoint"),
        ("s3://bucket?color=red", "endpoint, region, public"),
        ("s3://bucket?endpoint=127.0.0.1:9000", "http"),
        ("s3://bucket?endpoint=", "http"),
        ("s3://bucket/a//b", "prefix"),
        ("s3://bucket/a/../b", "prefix"),
        (f"s3://bucket/{'p' * 256}", "longer than 256"),
        ("s3://[::1", "s3://"),
    ],
)
def test_what_is_no_address_is_explained(address: str, said: str) -> None:
    with pytest.raises(InvalidAddress, match=said):
        open_store(address)


def test_credentials_in_an_address_are_refused_and_not_repeated() -> None:
    with pytest.raises(InvalidAddress, match="AWS_SECRET_ACCESS_KEY") as refused:
        open_store("s3://AKIA123:topsecret@bucket/prefix")
    assert "topsecret" not in str(refused.value)


def test_without_boto3_a_bucket_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("ledger.objects.s3", "ledger.objects.s3_calls"):
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(MissingExtra, match=r"job-ledger\[s3\]"):
        open_store("s3://bucket")


def test_a_folder_needs_no_boto3() -> None:
    script = "import sys, ledger.objects; sys.exit('boto3' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], timeout=30, check=False).returncode == 0
