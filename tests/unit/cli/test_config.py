"""`gracectl config`: what counts, as a file, and what may be said."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
import yaml
from click.testing import CliRunner, Result

from gracectl.cli.root import root
from gracectl.config import Settings, load_settings
from gracectl.config.fields import schema


def config(*arguments: str, **environ: str) -> Result:
    return CliRunner().invoke(root, ["config", *arguments], env=environ)


def test_without_a_file_it_prints_the_defaults(tmp_path: Path) -> None:
    shown = config()
    assert (shown.exit_code, shown.stderr) == (0, "")
    file = tmp_path / "settings.yaml"
    file.write_text(shown.stdout)
    assert load_settings(file) == Settings()
    assert shown.stdout.startswith("# No file and no variables")


def test_it_prints_what_counts_and_where_it_is_from(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("eviction: {qps: 5, burst: 5}")
    shown = config("--config", str(file), GRACECTL__EVICTION__BURST="7").stdout
    assert f"# file: {file}\n" in shown
    assert "  qps: 5  # file\n  burst: 7  # $GRACECTL__EVICTION__BURST\n" in shown
    assert yaml.safe_load(shown)["eviction"]["burst"] == 7


def test_as_json_it_is_one_object() -> None:
    shown = config("-o", "json", GRACECTL__EVICTION__BURST="7")
    assert shown.exit_code == 0
    settings = msgspec.convert(json.loads(shown.stdout), Settings)
    assert settings.eviction.burst == 7


def test_the_schema_is_printed_whatever_the_environment_says() -> None:
    shown = config("--schema", GRACECTL__WRONG="7")
    assert (shown.exit_code, shown.stderr) == (0, "")
    assert json.loads(shown.stdout) == schema()


@pytest.mark.parametrize("more", [("-o", "yaml"), ("--config", "a")])
def test_the_schema_wants_to_be_alone(more: tuple[str, str]) -> None:
    shown = config("--schema", *more)
    assert shown.exit_code == 2
    assert "give it alone" in shown.stderr


def test_a_bad_file_and_a_bad_variable_end_it_with_2(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("eviction: {qps: -5}")
    shown = config("--config", str(file))
    assert (shown.exit_code, shown.stdout) == (2, "")
    assert f"settings file {file}: eviction.qps: Expected `float` >= 0.0, got -5\n" in shown.stderr
    shown = config(GRACECTL__EVICTION__QPS="-5")
    assert shown.exit_code == 2
    assert "variable GRACECTL__EVICTION__QPS: eviction.qps" in shown.stderr


def test_every_command_that_reads_settings_heeds_the_environment() -> None:
    for command in ("controller", "agent", "plan", "status", "uninstall", "drain", "terminate", "uncordon", "budgets"):
        needed = {
            "terminate": ["n", "--yes"],
            "uninstall": ["--dry-run"],
            **{name: ["n"] for name in ("plan", "drain", "uncordon")},
        }
        arguments = needed.get(command, [])
        shown = CliRunner().invoke(root, [command, *arguments], env={"GRACECTL__EVICTION__QSP": "5"})
        assert (shown.exit_code, "did you mean GRACECTL__EVICTION__QPS?" in shown.stderr) == (2, True), command


def test_options_that_the_provider_does_not_take_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("provider: {name: aws, options: {accountId: 123456789012}}")
    shown = config("--config", str(file))
    assert (shown.exit_code, shown.stdout) == (2, "")
    assert shown.stderr == (
        "gracectl: provider.options.accountId: Expected `str | null`, got `int`; put it in quotes (provider aws)\n"
    )


def test_files_and_providers_that_are_only_where_the_controller_runs_are_no_error_here(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("provider: {name: webhook, options: {url: 'https://end.example.com', secretFile: /not/here}}")
    shown = config("--config", str(file))
    assert (shown.exit_code, shown.stderr) == (0, "")
    file.write_text("provider: {name: ours, options: {rack: 7}}")
    shown = config("--config", str(file))
    assert shown.exit_code == 0
    assert "rack: 7" in shown.stdout
    assert 'provider.name: unknown provider "ours"; installed: aws, ' in shown.stderr
    assert shown.stderr.endswith("its options are not checked\n")
