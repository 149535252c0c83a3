"""Where a call may go: the guard against requests forged to reach what only this machine can.

Public unicast addresses are allowed. Others are only if the allow list names them:

- a host (`model.internal`) or all below a name (`*.corp.example`) may lie in a private network
  (10/8, 172.16/12, 192.168/16, 100.64/10, fc00::/7);
- a network (`10.1.0.0/16`, `169.254.7.7`, `fd00::/8`) allows its addresses under whatever name;
- `loopback` allows 127/8 and ::1, and nothing else does but such a network.

So a listed name that somebody points at this machine or at the metadata service of a cloud is
refused. Multicast, broadcast and the unspecified address are refused even if a network covers them.
An address that carries another one (IPv4-mapped, NAT64, 6to4, Teredo) is also judged by that.

A host is resolved once, all its addresses are judged, and the connection goes to one that was:
what DNS says afterwards counts for nothing.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from enum import Enum
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import assert_never, final

from msgspec import Struct

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network
Resolve = Callable[[str], Awaitable[Sequence[str]]]
"""A host's addresses as text. Raises OSError if there is no such host or nobody answers."""

LOOPBACK = "loopback"
ENTRIES_MAX = 1_000
HOST_LENGTH_MAX = 253


class AddressRefused(Exception):
    """The guard lets no call go there. The message names a kind of address: not the address, which
    an inner name server may have given, nor the host, which a redirect may have named."""


class Kind(Enum):
    """Values are what messages call it."""

    PUBLIC = "a public address"
    PRIVATE = "an address in a private network"
    LOOPBACK = "a loopback address"
    RESERVED = "a link-local, metadata or reserved address"
    NEVER = "no unicast address"


@final
class AllowList(Struct, frozen=True, gc=False):
    hosts: frozenset[str] = frozenset()
    suffixes: tuple[str, ...] = ()
    """Each with the dot that it begins with."""
    networks: tuple[Network, ...] = ()
    loopback: bool = False

    @staticmethod
    def of(entries: Iterable[str]) -> AllowList:
        """Raises ValueError that names the entry."""
        hosts: set[str] = set()
        suffixes: list[str] = []
        networks: list[Network] = []
        loopback = False
        for entry in entries:
            text = entry.strip().lower().rstrip(".")
            if text == LOOPBACK:
                loopback = True
            elif network := _network(text):
                networks.append(network)
            elif text == "localhost" or text.endswith(".localhost"):
                raise ValueError(f"{entry!r} in the allow list: write {LOOPBACK!r}")
            elif not _NAME.fullmatch(text.removeprefix("*.")) or _ends_in_number(text):
                raise ValueError(
                    f"{entry!r} in the allow list is no host, '*.' and a name, network or"
                    f" {LOOPBACK!r}"
                )
            elif text.startswith("*."):
                suffixes.append(text[1:])
            else:
                hosts.add(text)
        if len(hosts) + len(suffixes) + len(networks) > ENTRIES_MAX:
            raise ValueError(f"the allow list holds more than {ENTRIES_MAX} entries")
        return AllowList(frozenset(hosts), tuple(suffixes), tuple(networks), loopback)

    def names(self, host: str) -> bool:
        return host in self.hosts or host.endswith(self.suffixes)

    def covers(self, address: Address) -> bool:
        return any(address in network for network in self.networks)


def kind_of(address: Address) -> Kind:
    """By our own tables: the standard library's change between versions of Python."""
    address = _reached(address)
    for kind, networks in _KINDS:
        if any(address in network for network in networks):
            return kind
    if isinstance(address, IPv6Address) and address not in _GLOBAL_UNICAST:
        return Kind.RESERVED
    return Kind.PUBLIC


def is_allowed(address: Address, host: str, allowed: AllowList) -> bool:
    """`host` in canonical form; a literal address is its own host."""
    address = _reached(address)
    carried = _tunnelled(address)
    if carried is not None and not is_allowed(carried, host, allowed):
        return False
    match kind := kind_of(address):
        case Kind.PUBLIC:
            return True
        case Kind.PRIVATE:
            return allowed.names(host) or allowed.covers(address)
        case Kind.LOOPBACK:
            return allowed.loopback or allowed.covers(address)
        case Kind.RESERVED:
            return allowed.covers(address)
        case Kind.NEVER:
            return False
        case _:
            assert_never(kind)


def canonical_host(host: str) -> str:
    """In lower case, without the root's dot. Raises `AddressRefused` for what is neither a name in
    ASCII (IDNA done) nor an address in its usual form: `127.1`, `0x7f.1` and `2130706433` are names
    to us and addresses to the resolver."""
    text = host.lower().removesuffix(".")
    if literal(text) is not None:
        return text
    if len(text) > HOST_LENGTH_MAX or not _NAME.fullmatch(text):
        raise AddressRefused("the host is no name and no address in its usual form")
    if _ends_in_number(text):
        raise AddressRefused("the host is an address in an unusual form")
    return text


def literal(host: str) -> Address | None:
    """The address that a host is; None for a name. Never one with a zone (`fe80::1%eth0`)."""
    if "%" in host:
        return None
    try:
        return ip_address(host)
    except ValueError:
        return None


async def system_resolve(host: str) -> Sequence[str]:
    found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


@final
class Guard:
    """`await guard.checked(host)` gives the addresses that a call to that host may go to."""

    def __init__(self, allowed: AllowList, resolve: Resolve = system_resolve) -> None:
        self._allowed = allowed
        self._resolve = resolve

    async def checked(self, host: str) -> tuple[Address, ...]:
        """At least one, in the resolver's order. Raises `AddressRefused` if one of them all is not
        allowed; OSError if the host has none."""
        host = canonical_host(host)
        own = literal(host)
        found = [own] if own is not None else [_resolved(a) for a in await self._resolve(host)]
        if not found:
            raise OSError("the host has no address")
        for address in found:
            if not is_allowed(address, host, self._allowed):
                verb = "is" if own is not None else "resolves to"
                kind = kind_of(address).value
                raise AddressRefused(f"the host {verb} {kind}, which is not allowed")
        return tuple(found)


def _resolved(text: str) -> Address:
    address = literal(text)
    if address is None:
        raise AddressRefused("the host resolves to an address with a zone")
    return address


def _network(text: str) -> Network | None:
    """None: a name. Raises ValueError for one with bits behind its prefix, such as 10.0.0.1/8."""
    address, _, _ = text.partition("/")
    if literal(address) is None:
        return None
    try:
        return ip_network(text)
    except ValueError as error:
        raise ValueError(f"{text!r} in the allow list: {error}") from None


def _reached(address: Address) -> Address:
    """What a connection to it comes to: an IPv4-mapped address is that IPv4 address, and NAT64
    leads to it."""
    if isinstance(address, IPv4Address):
        return address
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    return address.ipv4_mapped or address


def _tunnelled(address: Address) -> IPv4Address | None:
    if isinstance(address, IPv4Address):
        return None
    return address.teredo[1] if address.teredo is not None else address.sixtofour


def _ends_in_number(host: str) -> bool:
    return _NUMBER.fullmatch(host.rpartition(".")[2]) is not None


def _networks(*texts: str) -> tuple[Network, ...]:
    return tuple(ip_network(text) for text in texts)


_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_GLOBAL_UNICAST = IPv6Network("2000::/3")
_NAT64 = IPv6Network("64:ff9b::/96")
_KINDS: tuple[tuple[Kind, tuple[Network, ...]], ...] = (
    (Kind.NEVER, _networks("0.0.0.0/8", "224.0.0.0/4", "255.255.255.255", "::", "ff00::/8")),
    (Kind.LOOPBACK, _networks("127.0.0.0/8", "::1")),
    (
        Kind.RESERVED,
        _networks(
            # Metadata and host agents of clouds that lie in ranges of another kind.
            "100.100.100.200",
            "168.63.129.16",
            "fd00:ec2::254",
            # Link-local, protocol assignments, documentation, benchmarks, the future.
            "169.254.0.0/16",
            "192.0.0.0/24",
            "192.0.2.0/24",
            "192.88.99.0/24",
            "198.18.0.0/15",
            "198.51.100.0/24",
            "203.0.113.0/24",
            "240.0.0.0/4",
            "2001::/23",
            "2001:db8::/32",
            "2002::/16",
            "3fff::/20",
        ),
    ),
    (
        Kind.PRIVATE,
        _networks("10.0.0.0/8", "100.64.0.0/10", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7"),
    ),
)
"""The first that fits."""
