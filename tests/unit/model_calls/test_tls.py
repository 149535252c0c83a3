"""Over TLS the model is known by its name, whatever address was judged."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from processors.model_calls.addresses import AllowList, Guard
from processors.model_calls.calling import ModelCaller
from processors.model_calls.model_request import Target
from processors.model_calls.outcomes import Answer, CallFailed
from tests.support.scripted_model import always, answer, scripted_model

NAME = "model.example"


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """Of `model.example`, with its key, signed by itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, NAME)])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(datetime(2020, 1, 1, tzinfo=UTC))
        .not_valid_after(datetime(2120, 1, 1, tzinfo=UTC))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(NAME)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path / "model.pem"
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        + made.public_bytes(serialization.Encoding.PEM)
    )
    return path


async def loopback(host: str) -> Sequence[str]:
    return ["127.0.0.1"]


async def called(certificate: Path, host: str) -> tuple[Answer | CallFailed, list[str | None], str]:
    """The outcome, the names that TLS was asked for, and the `Host` that arrived."""
    names: list[str | None] = []
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate)
    server.sni_callback = lambda _, name, __: names.append(name)
    client = ssl.create_default_context(cafile=str(certificate))
    guard = Guard(AllowList.of(["loopback"]), loopback)
    caller = ModelCaller(guard, ssl_context=client)
    async with scripted_model(always(answer()), server) as model:
        target = Target(base_url=f"https://{host}:{model.port}", timeout_seconds=20.0)
        found = await caller.call(target, b"{}", idempotency_key="k")
        hosts = [one.headers["host"].partition(":")[0] for one in model.received]
    return found, names, "".join(hosts)


@pytest.mark.parametrize("host", [NAME, f"{NAME.title()}."])
async def test_name_and_certificate_are_of_the_host(certificate: Path, host: str) -> None:
    found, names, arrived = await called(certificate, host)
    assert isinstance(found, Answer), found
    assert (names, arrived) == ([NAME], NAME)


async def test_a_certificate_of_another_host_is_not_accepted(certificate: Path) -> None:
    found, names, arrived = await called(certificate, "other.example")
    assert isinstance(found, CallFailed)
    assert (found.code, names, arrived) == ("NETWORK_ERROR", ["other.example"], "")


async def test_a_handshake_that_hangs_is_left_in_time_and_closed() -> None:
    """The model takes what TLS begins with for a request that does not end."""
    caller = ModelCaller(Guard(AllowList.of(["loopback"])))
    async with scripted_model(always(answer())) as model:
        target = Target(base_url=f"https://127.0.0.1:{model.port}", timeout_seconds=0.2)
        found = await caller.call(target, b"{}", idempotency_key="k")
        async with asyncio.timeout(20):
            await model.left()
    assert isinstance(found, CallFailed)
    assert (found.code, model.connections, model.received) == ("MODEL_TIMEOUT", 1, [])
