"""docs/settings.md says of each field what the program does with it."""

from __future__ import annotations

import re
from pathlib import Path

import yaml
from support.settings import default_in_words, kind_in_words

from gracectl.config.changes import AGENT_SCOPE, CONTROLLER_SCOPE, is_within
from gracectl.config.fields import fields
from gracectl.config.loading import settings_of, variable_of
from gracectl.config.settings import NodeGroupSettings

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "settings.md").read_text()
CELLS = re.compile(r" (?<!\\)\| ")


def rows() -> list[list[str]]:
    """Of the tables of fields: path, kind, default, when it counts, what it does."""
    part = PAGE.partition("## Fields")[2].partition("## nodeGroups")[0]
    lines = [line for line in part.splitlines() if line.startswith("| `")]
    return [CELLS.split(line.removeprefix("| ").removesuffix(" |")) for line in lines]


def counts(path: str) -> str:
    """For the program that uses it."""
    reach = AGENT_SCOPE if is_within(path, CONTROLLER_SCOPE.ignored) else CONTROLLER_SCOPE
    return "live" if is_within(path, reach.live) else "restart"


def test_every_field_is_there_with_its_kind_its_default_and_when_it_counts() -> None:
    expected = [
        [f"`{path}`", kind_in_words(field.kind), default_in_words(path, field), counts(path)]
        for path, field in fields().items()
        if not field.is_section
    ]
    assert sorted(cells[:4] for cells in rows()) == sorted(expected)


def test_the_variables_of_the_page_are_variables_and_the_rule_for_their_names_holds() -> None:
    shown = set(re.findall(r"GRACECTL__[A-Z_]+[A-Z]", PAGE))
    assert "GRACECTL__EVICTION__MAX_IN_FLIGHT" in shown
    assert shown <= {variable_of(path) for path in fields()}
    for path in fields():
        # As the page says it.
        levels = [re.sub(r"(?<=[a-z])(?=[A-Z])", "_", level).upper() for level in path.split(".")]
        assert variable_of(path) == "__".join(["GRACECTL", *levels])


def test_each_says_what_it_does() -> None:
    for path, _, _, _, words in rows():
        assert len(words) > 5, path
        assert words.endswith("."), path


def test_the_fields_of_a_group_are_there() -> None:
    part = PAGE.partition("## nodeGroups")[2]
    for name in NodeGroupSettings.__struct_encode_fields__:
        assert f"`{name}`" in part


def test_its_examples_can_be_used() -> None:
    examples = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    assert len(examples) == 2
    for example in examples:
        settings_of(yaml.safe_load(example))


def test_the_most_used_fields_are_fields() -> None:
    part = PAGE.partition("\n## Most used\n")[2].partition("\n## ")[0]
    named = re.findall(r"^\| `([^`]+)`", part, re.MULTILINE)
    assert len(named) == 6
    assert set(named) <= set(fields())
