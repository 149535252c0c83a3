"""The guard lets calls go to public addresses, and to others only where the allow list says so."""

from __future__ import annotations

import re
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from processors.model_calls.addresses import (
    AddressRefused,
    AllowList,
    Guard,
    Kind,
    canonical_host,
    is_allowed,
    kind_of,
    system_resolve,
)

NOTHING = AllowList()
EVERYTHING = AllowList.of(["loopback", "0.0.0.0/0", "::/0", "*.example"])


def resolving(*addresses: str) -> Guard:
    return Guard(AllowList.of(["listed.example", "10.9.0.0/16"]), ScriptedResolver(*addresses))


class ScriptedResolver:
    """Gives the same addresses for every host."""

    def __init__(self, *addresses: str) -> None:
        self.addresses = addresses
        self.asked: list[str] = []

    async def __call__(self, host: str) -> Sequence[str]:
        self.asked.append(host)
        return self.addresses


@pytest.mark.parametrize(
    ("address", "kind"),
    [
        ("93.184.216.34", Kind.PUBLIC),
        ("1.1.1.1", Kind.PUBLIC),
        ("172.15.255.255", Kind.PUBLIC),
        ("172.32.0.0", Kind.PUBLIC),
        ("2606:4700:4700::1111", Kind.PUBLIC),
        ("::ffff:1.1.1.1", Kind.PUBLIC),
        ("64:ff9b::1.1.1.1", Kind.PUBLIC),
        ("10.0.0.1", Kind.PRIVATE),
        ("172.16.0.1", Kind.PRIVATE),
        ("192.168.1.1", Kind.PRIVATE),
        ("100.64.0.1", Kind.PRIVATE),
        ("fd12::1", Kind.PRIVATE),
        ("::ffff:10.0.0.1", Kind.PRIVATE),
        ("64:ff9b::10.0.0.1", Kind.PRIVATE),
        ("127.0.0.1", Kind.LOOPBACK),
        ("127.255.1.2", Kind.LOOPBACK),
        ("::1", Kind.LOOPBACK),
        ("::ffff:127.0.0.1", Kind.LOOPBACK),
        ("64:ff9b::7f00:1", Kind.LOOPBACK),
        ("169.254.169.254", Kind.RESERVED),
        ("::ffff:169.254.169.254", Kind.RESERVED),
        ("168.63.129.16", Kind.RESERVED),
        ("100.100.100.200", Kind.RESERVED),
        ("fd00:ec2::254", Kind.RESERVED),
        ("fe80::1", Kind.RESERVED),
        ("fec0::1", Kind.RESERVED),
        ("192.0.0.192", Kind.RESERVED),
        ("198.18.0.1", Kind.RESERVED),
        ("203.0.113.7", Kind.RESERVED),
        ("250.1.1.1", Kind.RESERVED),
        ("::127.0.0.1", Kind.RESERVED),
        ("64:ff9b:1::1", Kind.RESERVED),
        ("2001:db8::1", Kind.RESERVED),
        ("2001:0:1::1", Kind.RESERVED),
        ("2002:7f00:1::", Kind.RESERVED),
        ("5f00::1", Kind.RESERVED),
        ("0.0.0.0", Kind.NEVER),
        ("0.1.2.3", Kind.NEVER),
        ("::", Kind.NEVER),
        ("::ffff:0.0.0.0", Kind.NEVER),
        ("224.0.0.1", Kind.NEVER),
        ("ff02::1", Kind.NEVER),
        ("255.255.255.255", Kind.NEVER),
    ],
)
def test_an_address_is_of_one_kind(address: str, kind: Kind) -> None:
    assert kind_of(ip_address(address)) is kind
    assert is_allowed(ip_address(address), "other.example", NOTHING) == (kind is Kind.PUBLIC)
    assert is_allowed(ip_address(address), "a.example", EVERYTHING) == (kind is not Kind.NEVER)


@given(address=st.ip_addresses(v=4) | st.ip_addresses(v=6, network="2000::/3"))
def test_what_is_public_to_us_is_so_to_the_standard_library(
    address: IPv4Address | IPv6Address,
) -> None:
    by_library = address.is_global and not address.is_multicast
    assert kind_of(address) is not Kind.PUBLIC or by_library


@given(address=st.ip_addresses(v=4))
def test_an_address_in_another_form_is_of_the_same_kind(address: IPv4Address) -> None:
    for carrier in ("::ffff:0:0", "64:ff9b::"):
        assert kind_of(IPv6Address(int(IPv6Address(carrier)) + int(address))) is kind_of(address)


@given(address=st.ip_addresses(v=4))
def test_a_tunnel_leads_nowhere_that_the_address_in_it_may_not(address: IPv4Address) -> None:
    allowed = AllowList.of(["2002::/16", "2001::/32"])
    six_to_four = IPv6Address(0x2002 << 112 | int(address) << 80)
    teredo = IPv6Address(0x20010000 << 96 | int(address) ^ 0xFFFF_FFFF)
    for tunnel in (six_to_four, teredo):
        assert not is_allowed(tunnel, "x", NOTHING)
        assert is_allowed(tunnel, "x", allowed) == is_allowed(address, "x", allowed)


@pytest.mark.parametrize(
    ("entry", "host", "address", "allowed"),
    [
        ("model.corp", "model.corp", "10.0.0.1", True),
        ("Model.Corp.", "model.corp", "10.0.0.1", True),
        ("model.corp", "x.model.corp", "10.0.0.1", False),
        ("*.corp", "a.b.corp", "fd00::1", True),
        ("*.corp", "corp", "10.0.0.1", False),
        ("*.corp", "evilcorp", "10.0.0.1", False),
        ("model.corp", "model.corp", "127.0.0.1", False),
        ("model.corp", "model.corp", "169.254.169.254", False),
        ("10.0.0.0/8", "any", "10.2.3.4", True),
        ("10.0.0.0/8", "any", "::ffff:10.2.3.4", True),
        ("10.0.0.0/8", "any", "11.2.3.4", True),
        ("10.0.0.0/8", "any", "192.168.0.1", False),
        ("169.254.7.7", "any", "169.254.7.7", True),
        ("169.254.7.7", "any", "169.254.7.8", False),
        ("127.0.0.1/32", "any", "127.0.0.1", True),
        ("127.0.0.1/32", "any", "127.0.0.2", False),
        ("loopback", "any", "127.0.0.2", True),
        ("loopback", "any", "::1", True),
        ("loopback", "any", "10.0.0.1", False),
        ("loopback", "any", "0.0.0.0", False),
    ],
)
def test_an_entry_allows_so_much(entry: str, host: str, address: str, allowed: bool) -> None:
    assert is_allowed(ip_address(address), host, AllowList.of([entry])) == allowed


@pytest.mark.parametrize(
    "entry",
    [
        "",
        "*",
        "*.",
        "a b",
        "http://a",
        "a:80",
        "*.*.a",
        "a.*",
        "10.0.0.1/8",
        "10.0.0.0/33",
        "127.1",
        "localhost",
        "a.localhost",
        "fe80::1%eth0",
        "1",
    ],
)
def test_an_entry_that_says_nothing_is_refused(entry: str) -> None:
    with pytest.raises(ValueError, match=re.escape(repr(entry))):
        AllowList.of([entry])


@pytest.mark.parametrize(
    "host",
    [
        "127.1",
        "2130706433",
        "0x7f000001",
        "0x7f.1",
        "0177.0.0.1",
        "127.0.0.1.5",
        "a.0x",
        "1.2.3.256",
        "",
        ".",
        "a..b",
        "a.b..",
        "a b",
        "a%20b",
        "%31",
        "a\\b",
        "[::1]",
        "::1%eth0",
        "a\0b",
        "ä.de",
        "-a.b",
        "a-.b",
        "x" * 64,
        "x." * 127 + "xy",
        "a,b",
        "a:b",
        "a/b",
        "a@b",
    ],
)
async def test_an_odd_host_is_refused_unresolved(host: str) -> None:
    resolve = ScriptedResolver("93.184.216.34")
    with pytest.raises(AddressRefused):
        await Guard(EVERYTHING, resolve).checked(host)
    assert resolve.asked == []


@pytest.mark.parametrize(
    ("host", "canonical"),
    [
        ("A.Example.", "a.example"),
        ("xn--bcher-kva.example", "xn--bcher-kva.example"),
        ("a_b.c", "a_b.c"),
        ("127.0.0.1.", "127.0.0.1"),
        ("::1", "::1"),
    ],
)
def test_a_host_has_one_form(host: str, canonical: str) -> None:
    assert canonical_host(host) == canonical


async def test_a_literal_address_is_judged_without_a_name_server() -> None:
    resolve = ScriptedResolver("1.1.1.1")
    guard = Guard(NOTHING, resolve)
    assert await guard.checked("93.184.216.34") == (ip_address("93.184.216.34"),)
    for host in ("127.0.0.1", "127.0.0.1.", "::1", "::ffff:127.0.0.1", "169.254.169.254"):
        with pytest.raises(AddressRefused, match="is a"):
            await guard.checked(host)
    assert resolve.asked == []


async def test_one_address_that_is_not_allowed_spoils_all() -> None:
    with pytest.raises(AddressRefused, match="loopback"):
        await resolving("93.184.216.34", "2606:4700:4700::1111", "127.0.0.1").checked("a.example")


async def test_a_listed_host_may_be_private_and_not_the_metadata_service() -> None:
    assert await resolving("10.0.0.1", "fd00::1").checked("Listed.Example.") == (
        ip_address("10.0.0.1"),
        ip_address("fd00::1"),
    )
    with pytest.raises(AddressRefused, match="metadata"):
        await resolving("10.0.0.1", "169.254.169.254").checked("listed.example")


async def test_a_refusal_does_not_tell_inner_addresses() -> None:
    with pytest.raises(AddressRefused) as raised:
        await resolving("10.77.1.2").checked("a.example")
    assert str(raised.value) == (
        "the host resolves to an address in a private network, which is not allowed"
    )


async def test_an_address_with_a_zone_is_refused() -> None:
    with pytest.raises(AddressRefused, match="zone"):
        await resolving("fe80::1%2").checked("a.example")


async def test_a_host_without_address_is_no_refusal() -> None:
    with pytest.raises(OSError, match="no address"):
        await resolving().checked("a.example")


async def test_the_systems_resolver_tells_each_address_once() -> None:
    found = await system_resolve("localhost")
    assert "127.0.0.1" in found or "::1" in found
    assert len(set(found)) == len(found)
