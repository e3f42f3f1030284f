"""What GitHub reads besides workflows: issue forms, owners, updates of dependencies; and what editors read.

GitHub reads these files when an issue is opened, and reports nothing before: the rules of its documentation are here.
"""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from configparser import ConfigParser
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from gracectl import __version__
from gracectl.cli.commands import COMMANDS

ROOT = Path(__file__).parents[3]
FORMS = sorted(set(ROOT.glob(".github/ISSUE_TEMPLATE/*.yml")) - {ROOT / ".github/ISSUE_TEMPLATE/config.yml"})
TOP: Final = {"name", "description", "title", "labels", "assignees", "projects", "type", "body"}
# Attributes of each type of element: those that it must have, and all.
ATTRIBUTES: Final = {
    "markdown": ({"value"}, {"value"}),
    "textarea": ({"label"}, {"label", "description", "placeholder", "value", "render"}),
    "input": ({"label"}, {"label", "description", "placeholder", "value"}),
    "dropdown": ({"label", "options"}, {"label", "description", "multiple", "options", "default"}),
    "checkboxes": ({"label", "options"}, {"label", "description", "options"}),
}
# Labels that every new repository has.
LABELS: Final = {"bug", "documentation", "enhancement", "question"}


def read(path: str) -> Any:
    """A YAML file."""
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_an_issue_form_has_the_fields_that_github_knows(form: Path) -> None:
    template = read(str(form))
    assert {"name", "description", "body"} <= set(template) <= TOP
    assert set(template["labels"]) <= LABELS
    fields = [element for element in template["body"] if element["type"] != "markdown"]
    assert any((element.get("validations") or {}).get("required") for element in fields)
    for key in ("id", "label"):
        values = [element["attributes"]["label"] if key == "label" else element["id"] for element in fields]
        assert len(values) == len(set(values))
    for element in template["body"]:
        needed, known = ATTRIBUTES[element["type"]]
        assert set(element) <= {"type", "id", "attributes", "validations"}
        assert needed <= set(element["attributes"]) <= known
        assert re.fullmatch(r"[\w-]+", element.get("id", "markdown"))
        assert set(element.get("validations") or {}) <= {"required"}
        # What is rendered as code is no Markdown, and checkboxes are required one by one.
        assert not (element["type"] == "checkboxes" and "validations" in element)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_options_of_an_issue_form_are_texts_that_differ(form: Path) -> None:
    for element in read(str(form))["body"]:
        options = element["attributes"].get("options", [])
        if element["type"] == "dropdown":
            # YAML makes other things of yes, no and numbers, and "none" is GitHub's own word: it refuses all of these.
            assert all(isinstance(option, str) and option.lower() != "none" for option in options)
        if element["type"] == "checkboxes":
            assert all({"label"} <= set(option) <= {"label", "required"} for option in options)
        texts = [option if isinstance(option, str) else option["label"] for option in options]
        assert len(texts) == len(set(texts))


def test_a_bug_comes_with_what_the_commands_print() -> None:
    text = (ROOT / ".github/ISSUE_TEMPLATE/bug.yml").read_text()
    named = set(re.findall(r"(?<!-n )\bgracectl ([a-z]+)\b", text))
    assert {"version", "doctor", "status", "config"} <= named <= set(COMMANDS)
    assert read(".github/ISSUE_TEMPLATE/config.yml") == {"blank_issues_enabled": False}


def test_owners_are_written_as_github_reads_them() -> None:
    lines = [line for line in (ROOT / ".github/CODEOWNERS").read_text().splitlines() if line and line[0] != "#"]
    for line in lines:
        pattern, *owners = line.split()
        assert owners
        assert all(re.fullmatch(r"@[A-Za-z0-9][A-Za-z0-9-]*(/[A-Za-z0-9][\w.-]*)?", owner) for owner in owners)
        assert pattern == "*" or (ROOT / pattern.lstrip("/")).exists()


def test_updates_are_asked_for_wherever_versions_are_pinned() -> None:
    config = read(".github/dependabot.yml")
    assert config["version"] == 2
    folders: dict[str, set[str]] = {}
    for update in config["updates"]:
        assert set(update) <= {"package-ecosystem", "directory", "directories", "schedule", "cooldown", "groups"}
        assert update["schedule"]["interval"] in ("weekly", "monthly")
        folders.setdefault(update["package-ecosystem"], set()).update(
            update.get("directories", []) or [update["directory"]]
        )
    pins = {
        "pip": [
            "constraints.txt",
            "deploy/container/requirements.txt",
            "benchmarks/requirements.txt",
            "tools/audit/requirements.txt",
        ],
        "docker-compose": ["docker-compose.yml"],
        "gomod": ["tools/go_objects/go.mod"],
        "github-actions": [".github"],
    }
    assert set(folders) == set(pins)
    for ecosystem, paths in pins.items():
        for path in paths:
            assert (ROOT / path).exists()
            parent = "" if path.startswith(".github") else str(Path(path).parent).replace(".", "")
            assert f"/{parent}" in folders[ecosystem]


def recipe(target: str) -> list[str]:
    """The commands of a target of the Makefile."""
    (lines,) = re.findall(rf"^{target}:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    return [line.strip().replace("$(BIN)", ".venv/bin") for line in lines.splitlines()]


def test_hooks_before_a_commit_are_commands_of_lint_and_nothing_else() -> None:
    config = read(".pre-commit-config.yaml")
    (repository,) = config["repos"]
    assert repository["repo"] == "local"
    for hook in repository["hooks"]:
        assert hook["language"] == "system"
        assert hook["pass_filenames"] is False
        assert hook["entry"] in recipe("lint")
        assert set(hook.get("stages", [])) <= set(config["default_install_hook_types"])
    stages = {stage for hook in repository["hooks"] for stage in hook.get("stages", config["default_stages"])}
    assert stages == set(config["default_install_hook_types"])


def test_editors_are_told_what_the_formatter_does() -> None:
    lines = (ROOT / ".editorconfig").read_text()
    sections = ConfigParser(delimiters=("=",))
    sections.read_string(lines.replace("root = true", "[root]\nroot = true", 1))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert sections["*.py"]["max_line_length"] == str(project["tool"]["ruff"]["line-length"])
    assert sections["{Makefile,*.go,go.mod}"]["indent_style"] == "tab"
    assert sections["*"]["insert_final_newline"] == "true"


def test_the_dev_container_builds_the_environment_of_make() -> None:
    container = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text())
    program, *targets = shlex.split(container["postCreateCommand"])
    assert program == "make"
    makefile = (ROOT / "Makefile").read_text()
    assert re.search(r"^READY := \$\(VENV\)/\.ready$", makefile, re.MULTILINE)
    assert targets == [".venv/.ready", "helm"]
    assert re.search(r"python:\d+\.\d+\.\d+-3\.\d+-[a-z]+@sha256:[0-9a-f]{64}$", container["image"])
    # The tag of a feature can be moved; a digest excludes it.
    assert [each for each in container["features"] if not re.search(r"@sha256:[0-9a-f]{64}$", each)] == []
    assert "${containerWorkspaceFolder}/.venv/bin" in container["remoteEnv"]["PATH"]


def test_the_security_policy_has_a_private_channel_and_the_version_that_gets_fixes() -> None:
    policy = (ROOT / "SECURITY.md").read_text()
    assert "Report a vulnerability" in policy
    minor = ".".join(__version__.split(".")[:2])
    assert re.search(rf"^\| {re.escape(minor)} \| yes \|$", policy, re.MULTILINE)
    for page in ("SECURITY.md", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md"):
        assert not re.search(r"[\w.]+@[\w-]+\.\w+", (ROOT / page).read_text())
