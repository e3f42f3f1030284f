"""What people read of a value that does not fit: for each field its path, the value, and what would be right."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec import inspect
from support.settings import EXAMPLES, refused

from gracectl.config.fields import alternatives, fields, kind_at
from gracectl.config.messages import display


def nested(path: str, value: Any) -> str:
    whole = value
    for name in reversed(path.split(".")):
        more = {"name": "a"} if name == "service" and isinstance(whole, dict) and "name" not in whole else {}
        whole = {name: {**more, **whole} if isinstance(whole, dict) and more else whole}
    return yaml.safe_dump(whole)


def out_of_bounds(kind: inspect.Type) -> Iterator[Any]:
    for each in alternatives(kind):
        match each:
            case inspect.IntType() | inspect.FloatType():
                yield from (bound - 1 for bound in (each.ge, each.gt) if bound is not None)
                yield from (bound + 1 for bound in (each.le, each.lt) if bound is not None)
            case inspect.StrType(pattern=str()):
                yield from ("-wrong-", "Wrong", "a b")
            case inspect.LiteralType():
                yield "wrong"


def of_wrong_types(kind: inspect.Type) -> Iterator[Any]:
    kinds = tuple(map(type, alternatives(kind)))
    if inspect.StrType not in kinds:
        yield "wrong"
    if not {inspect.IntType, inspect.FloatType} & {*kinds}:
        yield 5
    if inspect.BoolType not in kinds:
        yield True
    if not {inspect.ListType, inspect.VarTupleType} & {*kinds}:
        yield ["wrong"]
    if not {inspect.DictType, inspect.StructType} & {*kinds}:
        yield {"wrong": 1}


CASES = [
    (path, value)
    for path in EXAMPLES
    for kind in [kind_at(path)]
    if kind is not None
    for value in (*of_wrong_types(kind), *out_of_bounds(kind))
]


def test_there_is_an_example_of_every_field() -> None:
    assert set(EXAMPLES) == {path for path, field in fields().items() if not field.is_section}
    assert len(CASES) > 150


@pytest.mark.parametrize(("path", "value"), CASES)
def test_a_wrong_value_is_told_with_its_field_and_what_was_expected(tmp_path: Path, path: str, value: Any) -> None:
    message = refused(tmp_path / "settings.yaml", nested(path, value))
    assert message.startswith(f"{path}: ")
    assert display(value) in message
    assert "Expected `" in message or "choose one of" in message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("eviction: {qps: -1}", "eviction.qps: Expected `float` >= 0.0, got -1"),
        ("eviction: {qps: .nan}", "eviction.qps: Expected `float` >= 0.0, got .nan"),
        ("eviction: {qps: -.inf}", "eviction.qps: Expected `float` >= 0.0, got -.inf"),
        ("eviction: {qps: 2s}", "eviction.qps: Expected `float`, got `str` ('2s')"),
        ("eviction: {qps: '5'}", "eviction.qps: Expected `float`, got `str` ('5'); write 5, without quotes"),
        # YAML 1.1, as Kubernetes' own files are read: an exponent needs a point and a sign.
        ("eviction: {qps: 1e3}", "eviction.qps: Expected `float`, got `str` ('1e3'); write 1000, without quotes"),
        ("eviction: {qps: on}", "eviction.qps: Expected `float`, got `bool` (true)"),
        ("eviction: {qps: }", "eviction.qps: Expected `float`, got `null`; remove it, or give it a value"),
        ("drain:", "drain: Expected `object`, got `null`; remove it, or give it a value"),
        ("nodeGroups:", "nodeGroups: Expected `array`, got `null`; remove it, or give it a value"),
        ("health: {enabled: 'yes'}", "health.enabled: Expected `bool | null`, got `str` ('yes')"),
        ("metrics: {listen: 9090}", "metrics.listen: Expected `str`, got `int` (9090); put it in quotes"),
        ("metrics: {listen: ~}", 'metrics.listen: Expected `str`, got `null`; write "" for none, or remove it'),
        ("log: {format: on}", "log.format: Expected `str`, got `bool` (true); choose one of auto, json, text"),
        ("agent: {busAddress: on}", "agent.busAddress: Expected `str`, got `bool` (true); put the word in quotes"),
        (
            "agent: {busAddress: 2026-01-01}",
            "agent.busAddress: Expected `str`, got `date` (2026-01-01); put it in quotes",
        ),
        (
            "leaderElection: {name: My_Lease}",
            "leaderElection.name: Expected `str` matching regex '^[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?$', got "
            '\'My_Lease\'; a name has small letters, digits, "-" and ".", begins and ends with a letter or digit, and '
            "is no longer than 253",
        ),
        (
            "finalizer: foregroundDeletion",
            "finalizer: Invalid enum value 'foregroundDeletion'; choose one of auto, gracectl.io/termination, "
            "karpenter.sh/termination",
        ),
        ("log: {level: 3}", "log.level: Expected `str`, got `int` (3); choose one of debug, error, info, warning"),
        (
            "nodeGroups: [{selector: {}}, {selector: {}, drain: {minimumSeconds: -3}}]",
            "nodeGroups[1].drain.minimumSeconds: Expected `float` >= 0.0, got -3",
        ),
        (
            "nodeGroups: [{selector: {matchLabels: {a: b, c: 1}}}]",
            "nodeGroups[0].selector.matchLabels[...]: Expected `str`, got `int` (1); put it in quotes",
        ),
        (
            "nodeGroups: [{selector: {matchLabels: {1: b}}}]",
            "nodeGroups[0].selector.matchLabels: Expected `str` as a key, got 1; put it in quotes",
        ),
        ("on: {}", "the document: Expected `str` as a key, got true; put it in quotes"),
        (
            "nodeGroups: [{selector: {}, terminationGracePeriod: 1d}]",
            "nodeGroups[0].terminationGracePeriod: '1d' is no termination grace period such as 30s, 15m or 1h30m",
        ),
        (
            "nodeGroups: [{selector: {}, terminationGracePeriod: 900}]",
            "nodeGroups[0].terminationGracePeriod: Expected `str | null`, got `int` (900); put it in quotes",
        ),
        ("evicton: {}", "the document: Object contains unknown field `evicton`; did you mean eviction? remove it or "
         "correct its name (docs/settings.md lists every field)"),
        ("eviction: {max_in_flight: 3}", "eviction: Object contains unknown field `max_in_flight`; did you mean "
         "maxInFlight? remove it or correct its name (docs/settings.md lists every field)"),
        ("nodeGroups: [{selector: {}, xyz: 1}]", "nodeGroups[0]: Object contains unknown field `xyz`; remove it or "
         "correct its name (docs/settings.md lists every field)"),
        ("eviction: {qps: 1, burst: 2, qps: 3}", "is not YAML: found 'qps' twice in \"<unicode string>\", line 1, "
         "column 30: eviction: {qps: 1, burst: 2, qps: 3} ^"),
        ("eviction:\n\tqps: 1", "is not YAML: while scanning for the next token found character '\\t' that cannot "
         'start any token in "<unicode string>", line 2, column 1: qps: 1 ^'),
        ("agent: {busAddress: 2026-13-01}", "is not YAML: month must be in 1..12"),
        ("a: 1\n---\nb: 2", "is not YAML: expected a single document in the stream in \"<unicode string>\", line 1, "
         'column 1: a: 1 ^ but found another document in "<unicode string>", line 2, column 1: --- ^'),
        ("just words", "the document: Expected `object`, got `str` ('just words')"),
        ("eviction: {qps: " + "9" * 400 + "}", "eviction.qps: Number out of range: 99999"),
        ("provider: {name: " + "[" * 5000, "is not YAML: "),
    ],
)  # fmt: skip
def test_the_words(tmp_path: Path, text: str, message: str) -> None:
    refusal = refused(tmp_path / "settings.yaml", text)
    assert refusal == message if len(text) < 300 else refusal.startswith(message)


def test_a_long_value_is_cut(tmp_path: Path) -> None:
    message = refused(tmp_path / "settings.yaml", f"log: {{level: {['x' * 500]}}}")
    assert len(message) < 200
    assert "…" in message
