"""Choose the address for the next request, and avoid addresses that failed recently.

A broker has several addresses if the user passes several, or if its host name has several DNS
records. This module sends no requests.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import time
import urllib.request
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import httpx

AVOID_S = 10.0
"""Seconds for which the client prefers all other addresses to one that failed."""
LOOK_UP_S = 30.0
"""Seconds for which the client caches the DNS records of a host name."""
CONNECT_TIMEOUT_S = 5.0
"""Connect timeout in seconds if there are other addresses to try."""


class Name(NamedTuple):
    """A host name to look up."""

    url: str
    """As the user passed it."""
    host: str
    port: int | None


@dataclass(eq=False)
class Address:
    """One address of the broker."""

    url: str
    """Without a path; the host is an IP address if the host name has several."""
    name: str = ""
    """``host:port`` as passed, if ``url`` has an IP address instead; else empty."""
    avoided_until: float = 0.0
    """In seconds of the monotonic clock."""

    @property
    def headers(self) -> dict[str, str]:
        """The ``Host`` header that a URL with an IP address needs."""
        return {"Host": self.name} if self.name else {}

    @property
    def extensions(self) -> dict[str, Any]:
        """The host name for the check of the TLS certificate."""
        return {"sni_hostname": httpx.URL(f"//{self.name}").host} if self.name else {}


class Addresses:
    """The addresses of one client. Thread-safe.

    The client uses the first address until it fails, then the next one that works.
    """

    def __init__(self, urls: Sequence[str], *, looks_up: bool = True) -> None:
        self.urls = tuple(urls)
        self._addresses = {url: [Address(url)] for url in self.urls}
        self._names = [url for url in self.urls if looks_up and _has_records(url)]
        self._look_up_at = 0.0
        self._current = self._addresses[self.urls[0]][0]

    def __len__(self) -> int:
        return sum(map(len, self._addresses.values()))

    def names(self) -> list[Name]:
        """Return the host names that are to be looked up now, for `add_records`."""
        now = time.monotonic()
        if not self._names or now < self._look_up_at:
            return []
        self._look_up_at = now + LOOK_UP_S
        urls = [(url, httpx.URL(url)) for url in self._names]
        return [Name(given, url.host, url.port) for given, url in urls]

    def add_records(self, given: str, records: Iterable[Any]) -> None:
        """Store the results of ``getaddrinfo`` for one of `names`."""
        hosts = dict.fromkeys(str(record[4][0]) for record in records)
        if len(hosts) < 2:
            # With a single record, the connection looks it up.
            found = [Address(given)]
        else:
            url = httpx.URL(given)
            name = url.netloc.decode("ascii")
            found = [Address(str(url.copy_with(host=host)), name) for host in hosts]
        known = {address.url: address for address in self._addresses[given]}
        self._addresses[given] = [known.get(address.url, address) for address in found]

    def choose(self, tried: Collection[Address] = ()) -> Address | None:
        """Return the address to try next, or None if all are in ``tried``."""
        left = [one for every in self._addresses.values() for one in every if one not in tried]
        if not left:
            return None
        now = time.monotonic()
        self._current = min(
            left, key=lambda one: (max(0.0, one.avoided_until - now), one is not self._current)
        )
        return self._current

    def avoid(self, address: Address) -> None:
        """Prefer all other addresses for `AVOID_S` seconds, because this one failed."""
        address.avoided_until = time.monotonic() + AVOID_S


def addresses_of(given: str | Sequence[str] | None) -> list[str]:
    """Return the passed URLs, or those in ``HOOKSTATION_URL``, separated by commas."""
    found = given or os.environ.get("HOOKSTATION_URL") or ""
    parts = found.split(",") if isinstance(found, str) else found
    urls = [part.strip().rstrip("/") for part in parts if part.strip()]
    if not urls:
        raise ValueError("Pass the broker's address, or set HOOKSTATION_URL.")
    return list(dict.fromkeys(urls))


def _has_records(url: str) -> bool:
    """Return whether the host is a name that this process must look up."""
    with contextlib.suppress(httpx.InvalidURL):
        found = httpx.URL(url)
        if found.scheme not in {"http", "https"} or not found.host:
            return False
        try:
            ipaddress.ip_address(found.host)
        except ValueError:
            return not _has_proxy(found)
    return False


def _has_proxy(url: httpx.URL) -> bool:
    """Return whether the environment names a proxy for the URL; a proxy looks names up itself."""
    proxies = urllib.request.getproxies()
    is_direct = urllib.request.proxy_bypass(url.host)
    return not is_direct and bool(proxies.get(url.scheme) or proxies.get("all"))
