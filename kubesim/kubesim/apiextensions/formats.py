"""String formats of schemas: the common ones of the formats that a real server checks.

Other formats are not checked, here or (int32, int64…) there:
https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/#validation
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Callable
from datetime import date
from email.utils import parseaddr
from ipaddress import IPv4Address, IPv6Address, ip_interface
from typing import Final
from urllib.parse import urlsplit

from kubesim.values import parse_duration

Check = Callable[[str], bool]


def _reads(read: Callable[[str], object]) -> Check:
    def check(text: str) -> bool:
        try:
            read(text)
        except ValueError:
            return False
        return True

    return check


_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_TIME: Final = re.compile(r"([01]\d|2[0-3]):[0-5]\d:[0-5]\d(.\d+)?(z|[+-]\d\d:\d\d)", re.ASCII)
_UNIT: Final = "ns|nano|nanos|nanosec|µs|us|micro|microsec|ms|milli|millisec|s|sec|m|min|h|hr|hour|d|day|w|wk|week"
_SPOKEN: Final = re.compile(rf"(-?\d+)\s*({_UNIT})[a-z]*", re.IGNORECASE)
_HOSTNAME: Final = re.compile(r"([^\W_]([-\w]{0,61}[^\W_])?)(\.[^\W_]([-\w]{0,61}[^\W_])?)*")


def _is_date(text: str) -> bool:
    return _DATE.fullmatch(text) is not None and _reads(date.fromisoformat)(text)


def _is_date_time(text: str) -> bool:
    day, _, time = text.lower().partition("t")
    return _is_date(day) and _TIME.fullmatch(time) is not None


def _is_duration(text: str) -> bool:
    return _reads(parse_duration)(text) or _SPOKEN.search(text) is not None


def _is_hostname(text: str) -> bool:
    return len(text) <= 255 and "_" not in text and _HOSTNAME.fullmatch(text) is not None


def _is_email(text: str) -> bool:
    user, _, host = parseaddr(text)[1].rpartition("@")
    return bool(user and host)


def _is_uri(text: str) -> bool:
    try:
        parts = urlsplit(text)
    except ValueError:
        return False
    return " " not in text and (text.startswith("/") or bool(parts.scheme and (parts.netloc or parts.path)))


def _is_base64(text: str) -> bool:
    return _reads(lambda text: b64decode(text, validate=True))(text) if text else True


_HEX: Final = "[0-9a-fA-F]"
_UUID: Final = re.compile(f"{_HEX}{{8}}-?({_HEX}{{4}}-?){{3}}{_HEX}{{12}}")

FORMATS: Final[dict[str, Check]] = {
    "byte": _is_base64,
    "cidr": _reads(lambda text: ip_interface(text) if "/" in text else int("")),
    "date": _is_date,
    "datetime": _is_date_time,
    "duration": _is_duration,
    "email": _is_email,
    "hostname": _is_hostname,
    "ipv4": _reads(IPv4Address),
    "ipv6": _reads(IPv6Address),
    "password": lambda text: True,
    "uri": _is_uri,
    "uuid": lambda text: _UUID.fullmatch(text) is not None,
}
"""By name, without dashes."""


def format_check(name: str) -> Check | None:
    """What a string of this format must satisfy, or None if nothing is checked."""
    return FORMATS.get(name.replace("-", ""))
