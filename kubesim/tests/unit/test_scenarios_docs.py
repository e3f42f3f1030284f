"""docs/scenarios.md tells of every field, default, fault and scenario that there is, and its examples can be read."""

from __future__ import annotations

import re
from pathlib import Path

import anyio
import msgspec
import pytest
from kubesim.clock import LoopClock
from kubesim.cluster import PARTS
from kubesim.scenarios import library
from kubesim.scenarios.objects import served
from kubesim.scenarios.parser import camel, read_text
from kubesim.scenarios.scenario import Scenario
from kubesim.scenarios.simulation import Simulation
from msgspec import inspect

PAGE = (Path(__file__).parents[2] / "docs" / "scenarios.md").read_text(encoding="utf-8")
TABLE = re.compile(r"^<!-- fields: (\w+)(?:, besides ([\w, ]+))? -->\n\n(.*?)(?=^#|\Z)", re.MULTILINE | re.DOTALL)
ROW = re.compile(r"^\| `(\w+)` \| (.*?) \| (.*?) \| (.+) \|$", re.MULTILINE)


def structs(kind: inspect.Type, found: dict[str, inspect.StructType]) -> dict[str, inspect.StructType]:
    """Every struct that a file can spell out, by name."""
    inner: tuple[inspect.Type, ...] = ()
    match kind:
        case inspect.Metadata():
            inner = (kind.type,)
        case inspect.StructType() if kind.cls.__name__ not in found:
            found[kind.cls.__name__] = kind
            inner = tuple(field.type for field in kind.fields)
        case inspect.UnionType():
            inner = kind.types
        case inspect.ListType() | inspect.VarTupleType():
            inner = (kind.item_type,)
        case inspect.DictType():
            inner = (kind.value_type,)
    for each in inner:
        structs(each, found)
    return found


STRUCTS = structs(inspect.type_info(Scenario), {})
TABLES = {
    match[1]: (match[2], {row[1]: row[3].strip("`") for row in ROW.finditer(match[3])})
    for match in TABLE.finditer(PAGE)
}


def default(field: inspect.Field) -> str:
    """A default as the page writes it."""
    if field.required:
        return "required"
    value = field.default if field.default is not msgspec.NODEFAULT else None
    if field.default_factory is not msgspec.NODEFAULT:
        value = field.default_factory()
    match value:
        case bool():
            return str(value).lower()
        case float():
            return f"{value:g}"
        case dict() if value:
            return f"{{{', '.join(f'{key}: {item}' for key, item in value.items())}}}"
        case tuple() if value:
            return f"[{', '.join(value)}]"
        case str() | int():
            return str(value)
    return ""


def documented(name: str) -> dict[str, str]:
    """The default of each field that the page tells of a struct, with those that it inherits."""
    besides, fields = TABLES[name]
    for other in filter(None, (besides or "").split(", ")):
        fields = {**TABLES[other][1], **fields}
    return fields


@pytest.mark.parametrize("name", STRUCTS)
def test_every_field_is_there_with_its_default_and_no_other(name: str) -> None:
    fields = {camel(field.encode_name): default(field) for field in STRUCTS[name].fields if field.name != "fault"}
    assert documented(name) == fields


def test_nothing_is_told_of_what_is_not_there() -> None:
    assert TABLES.keys() == STRUCTS.keys()


def test_every_link_leads_somewhere() -> None:
    headings = {re.sub(r"[^\w -]", "", text.lower()).replace(" ", "-") for text in re.findall(r"^#+ (.*)$", PAGE, re.M)}
    assert set(re.findall(r"\]\(#([\w-]+)\)", PAGE)) <= headings


@pytest.mark.anyio
@pytest.mark.parametrize("text", re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))
@pytest.mark.parametrize("start", ["grown", "prebuilt"])
async def test_every_example_comes_to_life(text: str, start: str) -> None:
    scenario = msgspec.structs.replace(read_text(text, "example"), start=start)
    simulation = Simulation(LoopClock(), scenario)
    async with anyio.create_task_group() as group:
        assert (await group.start(simulation.run)).is_complete
        group.cancel_scope.cancel()
    for object_ in simulation.plan.objects:
        resource = served(simulation.cluster, object_["kind"], object_["apiVersion"])
        names = {stored["metadata"]["name"] for stored in simulation.cluster.server.store.table(resource.table)}
        assert object_["metadata"]["name"] in names


def test_every_scenario_is_listed_as_it_says_of_itself() -> None:
    for name in library.names():
        assert f"| `{name}` | {library.scenario_named(name).description} |" in PAGE


def test_every_fault_and_every_part_is_named() -> None:
    for name, kind in STRUCTS.items():
        if kind.tag is not None:
            assert f"| `{name[:1].lower()}{name[1:]}` |" in PAGE
    (parts,) = re.findall(r"Parts that are left out: (.*?)\. \|", PAGE)
    assert set(re.findall(r"`([\w-]+)`", parts)) == PARTS
