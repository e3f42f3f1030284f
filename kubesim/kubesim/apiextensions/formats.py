"""String formats of schemas, as far as a real server checks them.

Other formats (int32 and int64 among them) are notes to the reader and check nothing:
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


def _matches(pattern: str) -> Check:
    compiled = re.compile(pattern, re.ASCII)
    return lambda text: compiled.fullmatch(text) is not None


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


def _is_isbn(*lengths: int) -> Check:
    def check(text: str) -> bool:
        digits = re.sub(r"[\s-]", "", text)
        if len(digits) not in lengths or not re.fullmatch(r"\d+[\dX]", digits):
            return False
        numbers = [10 if digit == "X" else int(digit) for digit in digits]
        if len(digits) == 10:
            return sum((10 - index) * number for index, number in enumerate(numbers)) % 11 == 0
        return sum(number * (3 if index % 2 else 1) for index, number in enumerate(numbers)) % 10 == 0

    return check


_HEX: Final = "[0-9a-fA-F]"
_UUID: Final = rf"{_HEX}{{8}}-?{_HEX}{{4}}-?%s-?%s-?{_HEX}{{12}}"
_FOUR: Final = rf"{_HEX}{{4}}"
_VARIANT: Final = rf"[89abAB]{_HEX}{{3}}"

FORMATS: Final[dict[str, Check]] = {
    "bsonobjectid": _matches(rf"{_HEX}{{24}}"),
    "byte": _is_base64,
    "cidr": _reads(lambda text: ip_interface(text) if "/" in text else int("")),
    "creditcard": lambda text: _matches(r"(4\d{12}(\d{3})?|5[1-5]\d{14}|6(011|5\d\d)\d{12}|3[47]\d{13}|35\d{14})")(
        re.sub(r"\D", "", text)
    ),
    "date": _is_date,
    "datetime": _is_date_time,
    "duration": _is_duration,
    "email": _is_email,
    "hexcolor": _matches(rf"#?({_HEX}{{3}}|{_HEX}{{6}})"),
    "hostname": _is_hostname,
    "ipv4": _reads(IPv4Address),
    "ipv6": _reads(IPv6Address),
    "isbn": _is_isbn(10, 13),
    "isbn10": _is_isbn(10),
    "isbn13": _is_isbn(13),
    "mac": _matches(
        rf"{_HEX}{{2}}([:-]{_HEX}{{2}}){{5}}|{_HEX}{{2}}([:-]{_HEX}{{2}}){{7}}|({_HEX}{{4}}\.){{2,3}}{_FOUR}"
    ),
    "password": lambda text: True,
    "rgbcolor": _matches(r"rgb\(\s*(\d{1,3})\s*,\s*(\d{1,3})\s*,\s*(\d{1,3})\s*\)"),
    "ssn": _matches(r"\d{3}[- ]?\d{2}[- ]?\d{4}"),
    "uri": _is_uri,
    "uuid": _matches(_UUID % (_FOUR, _FOUR)),
    "uuid3": _matches(_UUID % (rf"3{_HEX}{{3}}", _FOUR)),
    "uuid4": _matches(_UUID % (rf"4{_HEX}{{3}}", _VARIANT)),
    "uuid5": _matches(_UUID % (rf"5{_HEX}{{3}}", _VARIANT)),
}
"""By name, without dashes."""


def format_check(name: str) -> Check | None:
    """What a string of this format must satisfy, or None if nothing is checked."""
    return FORMATS.get(name.replace("-", ""))
