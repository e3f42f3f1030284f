"""Credentials that tests make themselves."""

from __future__ import annotations


class FixedToken:
    """TokenSource of a header that never changes, "" for none."""

    def __init__(self, value: str = "") -> None:
        self._value = value

    async def header(self) -> str:
        """See TokenSource."""
        return self._value

    async def renew(self) -> bool:
        """See TokenSource."""
        return False
