"""The command itself: what it offers, and what it does not load."""

from __future__ import annotations

import gc
import json
import re
import shlex
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import click
import pytest
import yaml
from click.testing import CliRunner
from support.shell import run_program

from gracectl import __version__
from gracectl.cli import main
from gracectl.cli.commands import COMMANDS, GROUPS, examples_of
from gracectl.cli.root import EXTRAS, root


def test_help_groups_the_commands_by_what_they_do() -> None:
    shown = CliRunner().invoke(root, ["--help"]).output
    places = [shown.index(f"\n{title}:\n") for title in GROUPS]
    assert places == sorted(places)
    assert places[0] < shown.index("\n  plan ") < places[1] < shown.index("\n  terminate ") < places[2]
    assert max(map(len, shown.splitlines())) <= 80


@pytest.mark.parametrize(("wrong", "meant"), [("drian", "drain"), ("stauts", "status"), ("xyz", "")])
def test_an_unknown_command_is_bad_usage_and_a_similar_one_is_named(wrong: str, meant: str) -> None:
    refused = CliRunner().invoke(root, [wrong])
    assert refused.exit_code == 2
    assert f"No such command '{wrong}'" in refused.output
    assert f"; did you mean {meant}?" in refused.output if meant else "did you mean" not in refused.output


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_the_purpose_of_the_table_and_examples_that_it_understands(name: str) -> None:
    context = click.Context(root, info_name="gracectl")
    command = root.get_command(context, name)
    assert command is not None
    assert (command.help or "").startswith(COMMANDS[name].summary)
    shown = CliRunner().invoke(root, [name, "--help"]).output
    assert len(examples_of(name)) >= 2
    for line, why in examples_of(name):
        assert f"\n    # {why}\n    gracectl {line}\n" in shown
        first, *arguments = shlex.split(re.split(" [|>]", line)[0])
        assert first == name
        command.make_context(name, arguments, parent=context)


def test_help_loads_no_command_and_no_client() -> None:
    """So it is there in a tenth of a second."""
    program = (
        "import sys\n"
        "from gracectl.cli.root import root\n"
        "root.main(['--help'], standalone_mode=False)\n"
        "loaded = sorted({'aiohttp', 'rich', 'yaml', 'msgspec', 'gracectl.kube'} & set(sys.modules))\n"
        "assert not loaded, loaded\n"
    )
    run_program(program)


def test_imports_are_frozen_for_the_garbage_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["gracectl", "version"])
    before = gc.get_freeze_count()
    try:
        with pytest.raises(SystemExit):
            main()
        assert gc.isenabled()
        assert gc.get_freeze_count() > before
    finally:
        gc.enable()


def test_the_version_is_the_packages() -> None:
    assert CliRunner().invoke(root, ["version"]).output == f"gracectl {__version__}\n"
    assert yaml.safe_load(CliRunner().invoke(root, ["version", "-o", "yaml"]).output)["version"] == __version__
    assert json.loads(CliRunner().invoke(root, ["version", "-o", "json"]).output)["version"] == __version__


def test_a_controller_carries_nothing_that_only_others_need() -> None:
    """No embedded cluster, and none of the large libraries: together they would double its memory."""
    program = (
        "import sys\n"
        "from gracectl.cli.root import root\n"
        "root.main(['controller', '--help'], standalone_mode=False)\n"
        "loaded = {'kubesim', 'gracectl.kube.auth.library', 'cryptography', 'opentelemetry.sdk', 'botocore', 'rich'}\n"
        "loaded &= set(sys.modules)\n"
        "assert not loaded, loaded\n"
    )
    run_program(program)


def test_no_command_for_a_cluster_carries_the_embedded_one() -> None:
    modules = (
        *("options", "plan.command", "drain.command", "uncordon", "doctor.command", "status.command"),
        *("budgets.command", "ui.command", "uninstall.command", "agent.command"),
    )
    program = (
        f"import sys, gracectl.inspect.watcher, {', '.join(f'gracectl.cli.{name}' for name in modules)}\n"
        "assert not [name for name in sys.modules if name.startswith('kubesim')]\n"
    )
    run_program(program)


def test_help_is_a_command_too() -> None:
    runner = CliRunner()
    assert runner.invoke(root, ["help"]).output == runner.invoke(root, ["--help"]).output
    assert runner.invoke(root, ["help", "plan"]).output == runner.invoke(root, ["plan", "--help"]).output
    unknown = runner.invoke(root, ["help", "plna"])
    assert unknown.exit_code == 2
    assert "No such command 'plna'; did you mean plan?" in unknown.stderr


@pytest.mark.parametrize(("arguments", "package", "remedy"), [
    (["demo"], "kubesim", "pip install ./kubesim ."),
    (["demo", "--nodes", "4"], "kubesim", "pip install ./kubesim ."),
    (["simulate", "--scenario", "small"], "kubesim", "pip install ./kubesim ."),
    (["agent"], "dbus-fast", "pip install '.[agent]'"),
    (["agent", "--simulate-shutdown", "--node-name", "worker-7"], "dbus-fast", "pip install '.[agent]'"),
])  # fmt: skip
def test_without_its_extra_a_command_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], package: str, remedy: str
) -> None:
    monkeypatch.setattr("gracectl.cli.root.find_spec", lambda name: None)
    refused = CliRunner().invoke(root, arguments)
    assert refused.exit_code == 2
    remedy = f"run in a checkout of gracectl: {remedy}"
    assert refused.stderr == f"gracectl: {arguments[0]}: {package} is not installed; {remedy}\n"
    assert refused.stdout == ""
    assert remedy[1:] in " ".join(CliRunner().invoke(root, [arguments[0], "--help"]).output.split())


def test_an_extra_installs_what_its_commands_look_for() -> None:
    extras = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    for command, extra in EXTRAS.items():
        (requirement,) = extras["optional-dependencies"][extra.name]
        assert command in COMMANDS
        assert re.match(r"[\w-]+", requirement)[0] == extra.package  # type: ignore[index]
        assert find_spec(extra.module) is not None


def test_without_any_extra_all_other_commands_are_there() -> None:
    program = (
        "import sys\n"
        "absent = ['kubesim', 'dbus_fast', 'aiobotocore', 'botocore', 'uvloop']\n"
        "sys.modules |= dict.fromkeys(absent)\n"
        "from gracectl.cli.root import root, COMMANDS, EXTRAS\n"
        "for name in set(COMMANDS) - set(EXTRAS):\n"
        "    root.main([name, '--help'], standalone_mode=False)\n"
    )
    run_program(program)
