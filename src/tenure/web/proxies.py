"""Proxies that speak for others: what they say of whom they ask for is believed, and what anybody else says is not."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

from tenure.errors import ConfigError

UNIX: Final = "unix"
"""Stands for whatever comes by a unix socket, which has no address."""


class Proxies:
    """Addresses, networks, or the word `unix`. Raises: ConfigError."""

    def __init__(self, named: Iterable[str]) -> None:
        told = list(named)
        self._has_unix = UNIX in told
        self._networks: list[IPv4Network | IPv6Network] = []
        for text in told:
            if text == UNIX:
                continue
            try:
                self._networks.append(ip_network(text, strict=False))
            except ValueError as exc:
                raise ConfigError(
                    f"A proxy is named by its address, as 10.0.0.7, a network, as 10.0.0.0/24, or the word {UNIX} for "
                    f"a unix socket; {text[:80]!r} is none of these."
                ) from exc

    def __contains__(self, address: str) -> bool:
        if address == UNIX:
            return self._has_unix
        found = parse_address(address)
        return found is not None and any(found in network for network in self._networks)


def parse_address(text: str) -> IPv4Address | IPv6Address | None:
    """The address of a text; one of IPv4 that came by IPv6 as what it is. None: it is none."""
    try:
        found = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return (found.ipv4_mapped or found) if isinstance(found, IPv6Address) else found
