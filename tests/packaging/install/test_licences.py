"""tools/licences.py: a licence that is new, unknown or not allowed is named with its package."""

from __future__ import annotations

from email.message import Message
from importlib.metadata import Distribution
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
SPEC = spec_from_file_location("licences", ROOT / "tools" / "licences.py")
assert SPEC is not None
assert SPEC.loader is not None
licences = module_from_spec(SPEC)
SPEC.loader.exec_module(licences)

OSI = "License :: OSI Approved"


class Installed(Distribution):
    """A package with this metadata."""

    def __init__(self, *headers: tuple[str, str]) -> None:
        self._message = Message()
        for name, value in (("Name", "some-package"), *headers):
            self._message[name] = value

    @property
    def metadata(self) -> Any:
        """See Distribution."""
        return self._message

    def read_text(self, filename: str) -> str | None:
        """See Distribution."""
        return None

    def locate_file(self, path: Any) -> Any:
        """See Distribution."""
        return path


@pytest.mark.parametrize(
    ("headers", "licence"),
    [
        ([("License-Expression", "MIT OR Apache-2.0"), ("License", "ignored")], "MIT OR Apache-2.0"),
        ([("License", "Apache License 2.0")], "Apache-2.0"),
        ([("License", "UNKNOWN"), ("Classifier", f"{OSI} :: MIT License")], "MIT"),
        (
            [("License", "The full text …"), ("Classifier", f"{OSI} :: Apache Software License")],
            "Apache-2.0",
        ),
    ],
)
def test_a_licence_is_read_from_whatever_names_it(headers: list[tuple[str, str]], licence: str) -> None:
    assert licences.licence_of(Installed(*headers)) == licence


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("License", "BSD")],
        [("License", "Proprietary")],
        [("Classifier", f"{OSI} :: BSD License")],
    ],
)
def test_a_package_that_names_none_is_named(headers: list[tuple[str, str]]) -> None:
    with pytest.raises(licences.Unknown, match=r"^some-package: no licence that is known by name"):
        licences.licence_of(Installed(*headers))


@pytest.mark.parametrize(
    ("licence", "extras", "bad"),
    [
        ("MIT AND (Apache-2.0 OR BSD-3-Clause)", "all", []),
        ("MIT AND GPL-3.0-only", "all", ["GPL-3.0-only"]),
        ("MIT AND GPL-3.0-only", "", []),
        ("AGPL-3.0-or-later", "", ["AGPL-3.0-or-later"]),
    ],
)
def test_a_licence_that_is_not_allowed_is_named(licence: str, extras: str, bad: list[str]) -> None:
    assert licences.forbidden(licences.Row("some-package", licence, extras)) == bad


def test_a_dependency_that_is_not_on_the_page_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = licences.PAGE.read_text()
    (line,) = (line for line in text.splitlines() if line.startswith("| aiohttp |"))
    monkeypatch.setattr(licences, "PAGE", tmp_path / "licences.md")
    licences.PAGE.write_text(text.replace(f"{line}\n", ""))
    assert licences.main([]) == 1
    assert f"licences: docs/licences.md: {line}\n" in capsys.readouterr().out
    assert licences.main(["--update"]) == 0
    assert licences.PAGE.read_text() == text
