"""The functions that Kubernetes adds, and those of cel-go's libraries for strings and sets that it switches on
(https://kubernetes.io/docs/reference/using-api/cel/#cel-options-language-features-and-libraries).

Left out: the authorizer (which admission policies have and definitions do not), semantic versions and named formats.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from ipaddress import ip_address, ip_interface
from itertools import pairwise
from typing import Any, Final
from urllib.parse import parse_qs, quote, urlsplit

from kubesim.cel.errors import EvaluationError
from kubesim.cel.overloads import Library
from kubesim.cel.regexes import compiled
from kubesim.cel.standard import STANDARD, _string
from kubesim.cel.values import (
    Address,
    Duration,
    Quantity,
    Range,
    Url,
    checked,
    equals,
    is_number,
    parse_quantity,
)

ADDED: Final = Library()
COMPARABLE: Final = ("int", "uint", "double", "bool", "duration", "timestamp", "string", "bytes")
EMPTY_SUMS: Final = {"int": 0, "uint": 0, "double": 0.0, "duration": Duration(0)}

# -- lists -------------------------------------------------------------------------------------------------------------


def _sum(values: list[Any], zero: Any) -> Any:
    total = zero
    for value in values:
        if isinstance(value, Duration):
            total = Duration(checked(total.nanoseconds + value.nanoseconds))
        else:
            total = total + value if isinstance(value, float) else checked(total + value)
    return total


def _extreme(choose: Callable[[list[Any]], Any], name: str) -> Callable[[list[Any]], Any]:
    def chosen(values: list[Any]) -> Any:
        if not values:
            raise EvaluationError(f"{name} called on empty list")
        return choose(values)

    return chosen


for _item in COMPARABLE:
    ADDED.add(f"list({_item}).isSorted() bool")(lambda values: all(one <= other for one, other in pairwise(values)))
    ADDED.add(f"list({_item}).min() {_item}")(_extreme(min, "min"))
    ADDED.add(f"list({_item}).max() {_item}")(_extreme(max, "max"))
for _item, _zero in EMPTY_SUMS.items():
    ADDED.add(f"list({_item}).sum() {_item}")(lambda values, zero=_zero: _sum(values, zero))


@ADDED.add("list(A).indexOf(A) int")
def _index_of(values: list[Any], wanted: Any) -> int:
    return next((index for index, value in enumerate(values) if equals(value, wanted)), -1)


@ADDED.add("list(A).lastIndexOf(A) int")
def _last_index_of(values: list[Any], wanted: Any) -> int:
    return next((index for index in range(len(values) - 1, -1, -1) if equals(values[index], wanted)), -1)


def _contains(values: list[Any], wanted: list[Any]) -> bool:
    return all(any(equals(value, each) for value in values) for each in wanted)


ADDED.add("sets.contains(list(A), list(A)) bool")(_contains)
ADDED.add("sets.equivalent(list(A), list(A)) bool")(lambda one, other: _contains(one, other) and _contains(other, one))
ADDED.add("sets.intersects(list(A), list(A)) bool")(
    lambda one, other: any(equals(value, each) for value in one for each in other)
)

# -- text --------------------------------------------------------------------------------------------------------------


@ADDED.add("string.find(string) string")
def _find(text: str, pattern: str) -> str:
    found = _pattern(pattern).search(text)
    return found.group() if found else ""


@ADDED.add("string.findAll(string) list(string)", "string.findAll(string, int) list(string)")
def _find_all(text: str, pattern: str, limit: int = -1) -> list[str]:
    found = [each.group() for each in _pattern(pattern).finditer(text)]
    return found if limit < 0 else found[:limit]


def _pattern(pattern: str) -> Any:
    try:
        return compiled(pattern)
    except ValueError as error:
        raise EvaluationError(f"Illegal regex: {error}") from None


def _at(text: str, *positions: int) -> None:
    for position in positions:
        if not 0 <= position <= len(text):
            raise EvaluationError(f"index out of range: {position}")


@ADDED.add("string.charAt(int) string")
def _char_at(text: str, position: int) -> str:
    _at(text, position)
    return text[position : position + 1]


@ADDED.add("string.indexOf(string) int", "string.indexOf(string, int) int")
def _position(text: str, part: str, start: int = 0) -> int:
    _at(text, start)
    return text.find(part, start)


@ADDED.add("string.lastIndexOf(string) int", "string.lastIndexOf(string, int) int")
def _last_position(text: str, part: str, start: int | None = None) -> int:
    if start is None:
        return text.rfind(part)
    _at(text, start)
    return text.rfind(part, 0, start + len(part))


@ADDED.add("string.replace(string, string) string", "string.replace(string, string, int) string")
def _replace(text: str, old: str, new: str, limit: int = -1) -> str:
    return text.replace(old, new, limit)


@ADDED.add("string.split(string) list(string)", "string.split(string, int) list(string)")
def _split(text: str, separator: str, limit: int = -1) -> list[str]:
    if limit == 0:
        return []
    if separator == "":
        return list(text) if limit < 0 or limit >= len(text) else [*text[: limit - 1], text[limit - 1 :]]
    return text.split(separator, limit - 1 if limit > 0 else -1)


@ADDED.add("string.substring(int) string", "string.substring(int, int) string")
def _substring(text: str, start: int, end: int | None = None) -> str:
    end = len(text) if end is None else end
    _at(text, start, end)
    if start > end:
        raise EvaluationError(f"invalid substring range. start: {start}, end: {end}")
    return text[start:end]


def _ascii(change: Callable[[str], str]) -> Callable[[str], str]:
    return lambda text: "".join(change(each) if each.isascii() else each for each in text)


ADDED.add("string.lowerAscii() string")(_ascii(str.lower))
ADDED.add("string.upperAscii() string")(_ascii(str.upper))
ADDED.add("string.trim() string")(lambda text: text.strip())
ADDED.add("list(string).join() string", "list(string).join(string) string")(
    lambda texts, separator="": separator.join(texts)
)
ADDED.add("strings.quote(string) string")(
    lambda text: '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t") + '"'
)


@ADDED.add("string.format(list(dyn)) string")
def _format(text: str, values: list[Any]) -> str:
    parts, rest, index = list[str](), text, 0
    while "%" in rest:
        before, _, rest = rest.partition("%")
        parts.append(before)
        if rest[:1] == "%":
            parts.append("%")
            rest = rest[1:]
            continue
        digits = rest[1 : len(rest) - len(rest[1:].lstrip("0123456789"))] if rest[:1] == "." else ""
        verb = rest[len(digits) + 1 if digits else 0 :][:1]
        rest = rest[(len(digits) + 1 if digits else 0) + 1 :]
        if index >= len(values):
            raise EvaluationError(f"index {index} out of range")
        parts.append(_clause(verb, values[index], int(digits or 6)))
        index += 1
    return "".join([*parts, rest])


def _clause(verb: str, value: Any, precision: int) -> str:
    match verb:
        case "s":
            return _shown(value)
        case "d" if is_number(value):
            return str(int(value))
        case "f" if is_number(value):
            return f"{value:.{precision}f}"
        case "e" if is_number(value):
            return f"{value:.{precision}e}"
        case "b" | "o" | "x" | "X" if isinstance(value, int):
            return format(int(value), verb)
        case "x" | "X" if isinstance(value, str | bytes):
            octets = value.encode() if isinstance(value, str) else value
            return octets.hex() if verb == "x" else octets.hex().upper()
    raise EvaluationError(f'could not parse formatting clause: unrecognized formatting clause "{verb}"')


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_shown, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_shown(key)}: {_shown(each)}' for key, each in sorted(value.items()))}}}"
    return "null" if value is None else _string(value)


# -- URLs --------------------------------------------------------------------------------------------------------------


def _parsed_url(text: str) -> Url | None:
    try:
        parts = urlsplit(text)
        port = str(parts.port or "")
    except ValueError:
        return None
    # As Go's url.ParseRequestURI has it: absolute, or a path from the root.
    if (not parts.scheme and not text.startswith("/")) or any(each in text for each in (" ", "\n", "#")):
        return None
    path = parts.path if "%" in parts.path else quote(parts.path, safe="/:@!$&'()*+,;=~-._")
    query = parse_qs(parts.query, keep_blank_values=True)
    host = parts.netloc.rpartition("@")[2]
    hostname = host.removesuffix(f":{port}") if port else host
    return Url(parts.scheme, host, hostname.strip("[]"), port, path, query)


@ADDED.add("url(string) url")
def _url(text: str) -> Url:
    found = _parsed_url(text)
    if found is None:
        raise EvaluationError(f'URL parse error during conversion from string: parse "{text}": invalid URI for request')
    return found


ADDED.add("isURL(string) bool")(lambda text: _parsed_url(text) is not None)
ADDED.add("url.getScheme() string")(lambda url: url.scheme)
ADDED.add("url.getHost() string")(lambda url: url.host)
ADDED.add("url.getHostname() string")(lambda url: url.hostname)
ADDED.add("url.getPort() string")(lambda url: url.port)
ADDED.add("url.getEscapedPath() string")(lambda url: url.path)
ADDED.add("url.getQuery() map(string, list(string))")(lambda url: url.query)

# -- quantities --------------------------------------------------------------------------------------------------------


def _is_readable(read: Callable[[str], Any]) -> Callable[[str], bool]:
    def readable(text: str) -> bool:
        try:
            read(text)
        except ValueError:
            return False
        return True

    return readable


@ADDED.add("quantity(string) quantity")
def _quantity(text: str) -> Quantity:
    try:
        return parse_quantity(text)
    except ValueError:
        raise EvaluationError(
            "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
        ) from None


def _whole(quantity: Quantity) -> bool:
    return quantity.amount == quantity.amount.to_integral_value() and abs(quantity.amount) < 2**63


@ADDED.add("quantity.asInteger() int")
def _as_integer(quantity: Quantity) -> int:
    if not _whole(quantity):
        raise EvaluationError("cannot convert value to integer")
    return int(quantity.amount)


ADDED.add("isQuantity(string) bool")(_is_readable(parse_quantity))
ADDED.add("quantity.sign() int")(lambda quantity: (quantity.amount > 0) - (quantity.amount < 0))
ADDED.add("quantity.isInteger() bool")(_whole)
ADDED.add("quantity.asApproximateFloat() double")(lambda quantity: float(quantity.amount))
ADDED.add("quantity.isGreaterThan(quantity) bool")(lambda one, other: one > other)
ADDED.add("quantity.isLessThan(quantity) bool")(lambda one, other: one < other)
ADDED.add("quantity.compareTo(quantity) int")(lambda one, other: (one > other) - (one < other))


@ADDED.add("quantity.add(quantity) quantity", "quantity.add(int) quantity")
def _more(one: Quantity, other: Quantity | int) -> Quantity:
    return Quantity(one.amount + (other.amount if isinstance(other, Quantity) else Decimal(other)))


@ADDED.add("quantity.sub(quantity) quantity", "quantity.sub(int) quantity")
def _less(one: Quantity, other: Quantity | int) -> Quantity:
    return Quantity(one.amount - (other.amount if isinstance(other, Quantity) else Decimal(other)))


# -- addresses ---------------------------------------------------------------------------------------------------------


def _address(text: str) -> Address:
    found = ip_address(text)
    if "%" in text or getattr(found, "ipv4_mapped", None):
        raise ValueError(text)
    return Address(str(found))


def _range(text: str) -> Range:
    if "/" not in text:
        raise ValueError(text)
    return Range(str(ip_interface(text)))


def _read(read: Callable[[str], Any], what: str) -> Callable[[str], Any]:
    def found(text: str) -> Any:
        try:
            return read(text)
        except ValueError:
            raise EvaluationError(f"{what} parse error during conversion from string: {text}") from None

    return found


_to_range = _read(_range, "network address")
_to_address = _read(_address, "IP Address")
ADDED.add("ip(string) address")(_to_address)
ADDED.add("isIP(string) bool")(_is_readable(_address))
ADDED.add("cidr(string) cidr")(_to_range)
ADDED.add("isCIDR(string) bool")(_is_readable(_range))
ADDED.add("address.family() int")(lambda value: value.parsed.version)
ADDED.add("address.isUnspecified() bool")(lambda value: value.parsed.is_unspecified)
ADDED.add("address.isLoopback() bool")(lambda value: value.parsed.is_loopback)
ADDED.add("address.isLinkLocalUnicast() bool")(lambda value: value.parsed.is_link_local)
ADDED.add("address.isGlobalUnicast() bool")(
    lambda value: not (value.parsed.is_unspecified or value.parsed.is_loopback or value.parsed.is_multicast)
)
ADDED.add("ip.isCanonical(string) bool")(lambda text: _to_address(text).text == text)
ADDED.add("string(address) string", "string(cidr) string")(lambda value: value.text)
ADDED.add("cidr.ip() address")(lambda value: Address(str(value.parsed.ip)))
ADDED.add("cidr.prefixLength() int")(lambda value: value.parsed.network.prefixlen)
ADDED.add("cidr.masked() cidr")(lambda value: Range(str(value.parsed.network)))
ADDED.add("cidr.containsIP(address) bool")(lambda value, address: address.parsed in value.parsed.network)
ADDED.add("cidr.containsIP(string) bool")(lambda value, text: _to_address(text).parsed in value.parsed.network)


def _covers(one: Range, other: Range) -> bool:
    network, inner = one.parsed.network, other.parsed.network
    return network.version == inner.version and bool(inner.subnet_of(network))


ADDED.add("cidr.containsCIDR(cidr) bool")(_covers)
ADDED.add("cidr.containsCIDR(string) bool")(lambda value, text: _covers(value, _to_range(text)))

LIBRARY: Final = Library(STANDARD, ADDED)
"""All functions that a rule may call."""
