"""Option -o: one spelling in all commands, the same object as JSON and as YAML, tables without a width."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import click
import pytest
import yaml
from click.testing import CliRunner
from rich.text import Text
from support.servers import mute

from gracectl.cli.commands import COMMANDS
from gracectl.cli.console import Row, Table, stdout_console, text_of
from gracectl.cli.output import Choice
from gracectl.cli.report import structured
from gracectl.cli.root import root

pytestmark = pytest.mark.real_time

WITHOUT = {"drain", "terminate", "rotate", "uncordon", "freeze", "unfreeze", "controller", "crds", "completion"} | {
    *("simulate", "ui", "webhooks"),
}
"""Commands that print no object: they request something, run, or print text for another program."""


@pytest.mark.parametrize("name", sorted(COMMANDS.keys() - WITHOUT))
def test_the_option_is_spelt_alike_everywhere(name: str) -> None:
    command = root.get_command(click.Context(root), name)
    assert command is not None
    [option] = [each for each in command.params if each.name == "output"]
    assert option.opts == ["-o", "--output"]
    assert isinstance(option.type, Choice)
    assert {"json", "yaml"} <= set(option.type.choices)


@pytest.mark.parametrize("arguments", [("version",), ("config",), ("status",)], ids=" ".join)
def test_yaml_has_the_object_of_json(arguments: tuple[str, ...], tmp_path: Path) -> None:
    with mute(tmp_path) as (_, path):
        target = ("--kubeconfig", str(path)) if arguments[0] == "status" else ()
        as_json, as_yaml = (CliRunner().invoke(root, [*arguments, *target, "-o", each]) for each in ("json", "yaml"))
    assert (as_json.exit_code, as_yaml.exit_code) == (0, 0), as_json.output + as_yaml.output
    one, other = json.loads(as_json.stdout), yaml.safe_load(as_yaml.stdout)
    for each in (one, other):
        each.pop("at", None)
        each.get("controller", {}).pop("renewed", None)
    assert one == other


def test_foreign_text_does_nothing_in_yaml() -> None:
    hostile = {"name": "\x1b[2J\u202e", "number": "1e3", "word": "no", "lines": "a\n- b: c"}
    text = structured(hostile, "yaml")
    assert text.isascii()
    assert "\x1b" not in text
    assert yaml.safe_load(text) == hostile


def test_a_value_like_another_names_it() -> None:
    refused = CliRunner().invoke(root, ["plan", "n1", "-o", "jsn"])
    assert refused.exit_code == 2
    assert "is not one of 'table', 'wide', 'json', 'yaml'. Did you mean 'json'?" in refused.stderr
    assert "mean" not in CliRunner().invoke(root, ["plan", "n1", "-o", "xml!"]).stderr


def test_a_wide_table_is_as_long_as_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    monkeypatch.setenv("COLUMNS", "40")
    table = Table(("node", "why"), [Row(("n1", Text("because " * 20)))], has_message=True)
    assert len(text_of(stdout_console(), table).splitlines()) > 2
    assert len(text_of(stdout_console(is_wide=True), table).splitlines()) == 2
