"""Decide which addresses a consumer may have, so that callbacks cannot reach the inner network.

An address is checked twice. ``check_url`` checks it at registration and says what to change.
``may_call`` checks the numeric address when the socket is opened, because a name can resolve to
anything by then. Only the second check protects the network; the first gives early feedback.
"""

import re
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)
from typing import TypeAlias
from urllib.parse import urlsplit

Networks: TypeAlias = tuple[IPv4Network | IPv6Network, ...]
"""Networks that the operator allows although they are not public."""

MAX_URL_LENGTH = 2048
"""Maximum length of a callback address, in characters."""

# Listed here instead of using `ipaddress.is_global`, which differs between Python patch releases,
# counts multicast as global, and accepts 6to4 and Teredo.
_CLOSED_IPV4 = tuple(
    IPv4Network(text)
    for text in (
        "0.0.0.0/8",  # this network, and the unspecified address
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # carrier-grade NAT, and one cloud's metadata service
        "127.0.0.0/8",  # loopback
        "168.63.129.16/32",  # a cloud's host agent behind a public-looking address
        "169.254.0.0/16",  # link-local, the metadata services
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # protocol assignments
        "192.0.2.0/24",  # documentation
        "192.88.99.0/24",  # 6to4 relays, retired
        "192.168.0.0/16",  # private
        "198.18.0.0/15",  # benchmarking
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and the broadcast address
    )
)
# Global unicast is exactly 2000::/3. Unspecified, loopback, unique local, link-local, multicast
# and every deprecated IPv4 embedding lie outside it.
_OPEN_IPV6 = IPv6Network("2000::/3")
_CLOSED_IPV6 = tuple(
    IPv6Network(text)
    for text in (
        "2001::/23",  # protocol assignments; Teredo, which tunnels to any IPv4 address
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4, which tunnels to any IPv4 address
        "3fff::/20",  # documentation
    )
)
_NAT64 = IPv6Network("64:ff9b::/96")

_LOOPBACKS = (IPv4Network("127.0.0.0/8"), IPv6Network("::1/128"))

_UNUSABLE = re.compile(r"[^\x21-\x7e]|\\")
# No zone id: it selects a network interface of this machine, behind which no consumer lives.
_BRACKETED = re.compile(r"\[[0-9a-f:.]+\](?::[0-9]*)?\Z", re.IGNORECASE)
_HOST_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_HOST_NAME = re.compile(rf"(?=.{{1,253}}\Z){_HOST_LABEL}(?:\.{_HOST_LABEL})*\Z", re.IGNORECASE)
# A host whose last label resolvers read as a number is an IPv4 address.
_NUMBER_LAST = re.compile(r"(?:.*\.)?(?:0x[0-9a-f]*|[0-9]+)\Z", re.IGNORECASE)


def parse_networks(text: str) -> Networks:
    """Parse networks separated by commas or blanks; a single address is a network of one.

    Raises ValueError with a sentence that names the invalid entry.
    """
    return tuple(_network(entry) for entry in re.split(r"[,\s]+", text) if entry)


def may_call(ip: str, allowed: Networks) -> bool:
    """Whether a socket may be opened to this numeric address: public, or in an allowed network.

    An IPv4 address embedded in an IPv6 one (mapped, or NAT64) is checked as that IPv4 address.
    False for text that is not a numeric address.
    """
    try:
        address = ip_address(ip)
    except ValueError:
        return False
    if any(address in network for network in allowed):
        return True
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _CLOSED_IPV4)
    inner = _embedded_ipv4(address)
    if inner is not None:
        return may_call(str(inner), allowed)
    return address in _OPEN_IPV6 and not any(address in network for network in _CLOSED_IPV6)


def check_url(url: str, *, allowed: Networks, https_only: bool = False) -> str | None:
    """Return what is wrong with a callback address, as a sentence for its author; None if valid.

    ``allowed`` are networks that may be called although they are not public. A host name is
    checked by its spelling only; ``may_call`` checks what it resolves to.
    """
    if len(url) > MAX_URL_LENGTH:
        return f"The address is longer than {MAX_URL_LENGTH} characters."
    if _UNUSABLE.search(url):
        return (
            "The address may hold visible ASCII characters only and no backslash; "
            "percent-encode the path and write the host in its xn-- form."
        )
    if "#" in url:
        return "The address must not have a fragment (#)."
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return "The address is malformed; its host or port cannot be read."
    return (
        _check_scheme(parts.scheme, https_only=https_only)
        or _check_authority(parts.netloc, port)
        or _check_host(parts.hostname or "", allowed)
    )


def _network(text: str) -> IPv4Network | IPv6Network:
    try:
        return ip_network(text)
    except ValueError:
        raise ValueError(
            f"{text!r} is not a network; write it like 10.0.0.0/8 or fd00::/8."
        ) from None


def _embedded_ipv4(address: IPv6Address) -> IPv4Address | None:
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    return address.ipv4_mapped


def _check_scheme(scheme: str, *, https_only: bool) -> str | None:
    if scheme == "https" or (scheme == "http" and not https_only):
        return None
    return f"The address must start with {'https://' if https_only else 'https:// or http://'}."


def _check_authority(netloc: str, port: int | None) -> str | None:
    if "@" in netloc:
        return "The address must not carry a user name or password; use a header of the consumer."
    if "[" in netloc and not _BRACKETED.match(netloc):
        return "An IPv6 host is written like [2600::1], without a zone."
    if port == 0:
        return "The port must be between 1 and 65535."
    return None


def _check_host(host: str, allowed: Networks) -> str | None:
    if not host:
        return "The address has no host."
    name = host.removesuffix(".")
    if ":" in name:
        return _check_literal(host, host, allowed)
    if not _HOST_NAME.match(name):
        return f"{host} is not a host name."
    if _NUMBER_LAST.match(name):
        numeric = _ipv4_as_resolvers_read_it(name)
        if numeric is None:
            return f"{host} is not an IPv4 address."
        return _check_literal(host, numeric, allowed)
    return _check_name(name, allowed)


def _check_literal(host: str, ip: str, allowed: Networks) -> str | None:
    if not may_call(ip, allowed):
        return f"{host} is not a public address; the operator has not allowed its network."
    return None


def _ipv4_as_resolvers_read_it(host: str) -> str | None:
    """Convert 127.1, 0x7f000001, 0177.0.0.1 or 2130706433 to a dotted quad; None if not numeric.

    As in inet_aton(3): up to four parts, each decimal, octal (0...) or hexadecimal (0x...); the
    last part fills the remaining bytes.
    """
    parts = host.split(".")
    numbers = [number for part in parts if (number := _number(part)) is not None]
    if len(numbers) < len(parts) or len(parts) > 4:
        return None
    *heads, last = numbers
    if last >= 256 ** (5 - len(parts)) or any(head > 255 for head in heads):
        return None
    high = sum(head << (24 - 8 * position) for position, head in enumerate(heads))
    return str(IPv4Address(high + last))


def _number(text: str) -> int | None:
    digits, base = text.lower(), 10
    if digits.startswith("0x"):
        digits, base = digits[2:] or "0", 16
    elif digits.startswith("0"):
        base = 8
    try:
        # int() reads 1_0 as ten, while a resolver takes it for a name.
        return int(digits, base) if digits.isalnum() else None
    except ValueError:
        return None


def _check_name(name: str, allowed: Networks) -> str | None:
    labels = name.lower().split(".")
    if labels[-1] == "localhost":
        refused = not any(_overlap(network, loop) for network in allowed for loop in _LOOPBACKS)
    else:
        # Names of an inner network are only useful if the operator has allowed one.
        refused = not allowed and labels[-1] in ("local", "internal")
    if refused:
        return f"{name} is a name in a private network; the operator has not allowed it."
    return None


def _overlap(a: IPv4Network | IPv6Network, b: IPv4Network | IPv6Network) -> bool:
    return a.version == b.version and a.overlaps(b)
