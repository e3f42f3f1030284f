"""What is told of settings that cannot be used."""

from __future__ import annotations


class ConfigError(Exception):
    """The settings cannot be used; the message names the file or variable, the field and the remedy."""


class Misfit(Exception):
    """Something of a document does not fit the settings: which field (`eviction.qps`), and the reason, for people."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field
        self.reason = reason
