"""The addresses of a broker: which one is next, and which ones failed a moment ago.

A broker has several addresses where several are given, or where its host name has several DNS
records. Nothing here sends a request.
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
"""Seconds for which an address that failed is tried after all others."""
LOOK_UP_S = 30.0
"""Seconds for which the DNS records of a host name hold."""
CONNECT_TIMEOUT_S = 5.0
"""Seconds for a connection where another address may be tried."""


class Name(NamedTuple):
    """A host name to be looked up."""

    url: str
    """As it was given."""
    host: str
    port: int | None


@dataclass(eq=False)
class Address:
    """One place at which the broker may answer."""

    url: str
    """Without a path; its host is an IP address where the name has several."""
    name: str = ""
    """``host:port`` as it was given, where ``url`` has an IP address instead."""
    avoided_until: float = 0.0
    """By the monotonic clock."""

    @property
    def headers(self) -> dict[str, str]:
        """What the request needs because its URL has an IP address."""
        return {"Host": self.name} if self.name else {}

    @property
    def extensions(self) -> dict[str, Any]:
        """The name by which the certificate is checked."""
        return {"sni_hostname": httpx.URL(f"//{self.name}").host} if self.name else {}


class Addresses:
    """The addresses of one client. It may be used by several threads.

    The first one is used until it fails, then the next one that works.
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
        """What has to be looked up now, for `add_records`."""
        now = time.monotonic()
        if not self._names or now < self._look_up_at:
            return []
        self._look_up_at = now + LOOK_UP_S
        urls = [(url, httpx.URL(url)) for url in self._names]
        return [Name(given, url.host, url.port) for given, url in urls]

    def add_records(self, given: str, records: Iterable[Any]) -> None:
        """Take what ``getaddrinfo`` answered for one of `names`."""
        hosts = dict.fromkeys(str(record[4][0]) for record in records)
        if len(hosts) < 2:
            # The connection looks it up by itself.
            found = [Address(given)]
        else:
            url = httpx.URL(given)
            name = url.netloc.decode("ascii")
            found = [Address(str(url.copy_with(host=host)), name) for host in hosts]
        known = {address.url: address for address in self._addresses[given]}
        self._addresses[given] = [known.get(address.url, address) for address in found]

    def choose(self, tried: Collection[Address] = ()) -> Address | None:
        """The address to try next; None when all are in ``tried``."""
        left = [one for every in self._addresses.values() for one in every if one not in tried]
        if not left:
            return None
        now = time.monotonic()
        self._current = min(
            left, key=lambda one: (max(0.0, one.avoided_until - now), one is not self._current)
        )
        return self._current

    def avoid(self, address: Address) -> None:
        """Try this one after all others for some seconds: it failed."""
        address.avoided_until = time.monotonic() + AVOID_S


def addresses_of(given: str | Sequence[str] | None) -> list[str]:
    """The URLs that were passed, or those of ``HOOKSTATION_URL``; commas separate several."""
    found = given or os.environ.get("HOOKSTATION_URL") or ""
    parts = found.split(",") if isinstance(found, str) else found
    urls = [part.strip().rstrip("/") for part in parts if part.strip()]
    if not urls:
        raise ValueError("Pass the broker's address, or set HOOKSTATION_URL.")
    return list(dict.fromkeys(urls))


def _has_records(url: str) -> bool:
    """Whether the host is a name that this process has to look up."""
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
    """Whether the environment names a proxy for it, which looks names up by itself."""
    proxies = urllib.request.getproxies()
    is_direct = urllib.request.proxy_bypass(url.host)
    return not is_direct and bool(proxies.get(url.scheme) or proxies.get("all"))
