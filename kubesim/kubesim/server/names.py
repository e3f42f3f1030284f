"""Validation of names and labels, in the words of apimachinery's util/validation."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

from kubesim.server.status import Cause, invalid_value

SUBDOMAIN_RULE: Final = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    r"'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
LABEL_RULE: Final = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with "
    "an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
LABEL_1035_RULE: Final = (
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, "
    "and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is "
    "'[a-z]([-a-z0-9]*[a-z0-9])?')"
)
NAME_RULE: Final = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric "
    "character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
VALUE_RULE: Final = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
    "'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)
_SUBDOMAIN: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_LABEL_1035: Final = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_NAME: Final = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
KEPT: Final = 65536
"""So many answers are remembered: names of pods and labels of pods come again and again."""


@lru_cache(maxsize=KEPT)
def is_subdomain(name: str) -> bool:
    """Whether the name is an RFC 1123 subdomain, as names of most objects are."""
    return len(name) <= 253 and _SUBDOMAIN.fullmatch(name) is not None


def is_label(name: str) -> bool:
    """Whether the name is an RFC 1123 label, as names of containers are."""
    return len(name) <= 63 and _LABEL.fullmatch(name) is not None


def is_label_1035(name: str) -> bool:
    """Whether the name is a DNS-1035 label, as names of kinds and versions are."""
    return len(name) <= 63 and _LABEL_1035.fullmatch(name) is not None


def is_name(key: str) -> bool:
    """Whether a qualified name, as keys of labels are, has a right part behind its slash."""
    return _NAME.fullmatch(key.rpartition("/")[2]) is not None


def is_value(value: str) -> bool:
    """Whether it may be the value of a label."""
    return not value or _NAME.fullmatch(value) is not None


def key_faults(key: str, field: str) -> Iterator[Cause]:
    """Faults of a qualified name, as keys of labels are."""
    prefix, slash, _ = key.rpartition("/")
    if slash and not is_subdomain(prefix):
        yield invalid_value(field, key, f"prefix part {SUBDOMAIN_RULE}")
    elif not is_name(key):
        yield invalid_value(field, key, NAME_RULE)


def path_name_faults(field: str, name: str) -> list[Cause]:
    """Faults of a name that need be no more than a part of a path."""
    if name in (".", ".."):
        return [invalid_value(field, name, f"may not be '{name}'")]
    return [invalid_value(field, name, f"may not contain '{mark}'") for mark in "/%" if mark in name]


@lru_cache(maxsize=KEPT)
def label_fault(key: str, value: str) -> Cause | None:
    """What is wrong with a label of an object, if anything is."""
    if not is_name(key):
        return invalid_value("metadata.labels", key, NAME_RULE)
    if not is_value(value):
        return invalid_value("metadata.labels", value, VALUE_RULE)
    return None
