"""tools/release: what cannot be released is said with the remedy, and what is built can be published."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest
import yaml
from support.tools import ROOT

from gracectl import __version__
from tools import release
from tools.release import CannotRelease

WRITTEN = ("gracectl/__init__.py", "kubesim/pyproject.toml", "helm/gracectl/Chart.yaml", "CHANGELOG.md")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """What is read of the tree, committed."""
    folder = tmp_path / "tree"
    for path in WRITTEN:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, folder / path)
    log = folder / "CHANGELOG.md"
    log.write_text(
        re.sub(rf"^(## {re.escape(__version__)} - ).*$", r"\g<1>2026-01-01", log.read_text(), flags=re.MULTILINE)
    )
    git(folder, "init", "--quiet")
    commit(folder)
    return folder


def git(tree: Path, *arguments: str) -> None:
    who = ("-c", "user.name=test", "-c", "user.email=test@example.com")
    subprocess.run(["git", "-C", str(tree), *who, *arguments], check=True, capture_output=True)


def commit(tree: Path) -> None:
    git(tree, "add", "--all")
    git(tree, "commit", "--quiet", "--message", "All of it")


def change(tree: Path, path: str, before: str, after: str) -> None:
    file = tree / path
    text = file.read_text(encoding="utf-8")
    assert before in text
    file.write_text(text.replace(before, after, 1), encoding="utf-8")


def refused(tree: Path, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    """What is said; nothing is built."""
    assert release.main([*(options or ("--dry-run",))], tree) == 2
    assert not (tree / "dist").exists()
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err


def test_versions_that_differ_are_named(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change(tree, "helm/gracectl/Chart.yaml", f'appVersion: "{__version__}"', 'appVersion: "9.9.9"')
    said = refused(tree, capsys)
    assert "versions differ: " in said
    assert "helm/gracectl/Chart.yaml appVersion: 9.9.9" in said


@pytest.mark.parametrize("after", ["## Unreleased", f"## {__version__} - 2026-01-01\n\n## 0.0.9 - 2025-01-01"])
def test_a_changelog_without_the_version_is_refused(tree: Path, capsys: pytest.CaptureFixture[str], after: str) -> None:
    heading = re.search(rf"^## {re.escape(__version__)} .*$", (tree / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert heading
    change(tree, "CHANGELOG.md", heading[0], after)
    assert refused(tree, capsys).startswith(
        f"release: CHANGELOG.md: no section for {__version__}, or an empty one; write"
    )


def test_a_section_without_a_date_is_refused(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change(tree, "CHANGELOG.md", f"## {__version__} - 2026-01-01", f"## {__version__} - unreleased")
    assert refused(tree, capsys, "--at-tag").startswith(f"release: CHANGELOG.md: {__version__} has no date; write")


def test_a_tree_with_changes_is_refused(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tree / "new").touch()
    assert refused(tree, capsys) == "release: not committed: new; commit it, or git stash -u\n"


def test_a_tag_that_is_there_is_refused_unless_it_is_asked_for(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "not at this commit" in refused(tree, capsys, "--at-tag")
    git(tree, "tag", f"v{__version__}")
    assert f"tag v{__version__}: there already; raise the version" in refused(tree, capsys)
    release.check_git(tree, __version__, at_tag=True)
    (tree / "new").touch()
    commit(tree)
    assert "not at this commit" in refused(tree, capsys, "--at-tag")


def test_notes_are_the_section_with_links_that_lead_somewhere() -> None:
    notes = release.notes_of(ROOT, __version__, "OWNER/gracectl")
    assert notes.startswith("### ")
    assert "\n## " not in notes
    assert "](docs/" not in notes
    assert f"](https://github.com/OWNER/gracectl/blob/v{__version__}/docs/" in notes


def test_the_manifest_of_the_plugin_has_the_sums_of_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "kubectl-grace-linux-amd64.tar.gz").write_bytes(b"archive")
    template = (ROOT / ".krew.yaml").read_text(encoding="utf-8")
    text, missing = release.krew_manifest(template, "v1.2.3", "OWNER/gracectl", tmp_path)
    manifest = yaml.safe_load(text)
    assert manifest["spec"]["version"] == "v1.2.3"
    assert len(manifest["spec"]["shortDescription"]) <= 50
    here, *elsewhere = manifest["spec"]["platforms"]
    assert here["uri"] == "https://github.com/OWNER/gracectl/releases/download/v1.2.3/kubectl-grace-linux-amd64.tar.gz"
    assert here["sha256"] == hashlib.sha256(b"archive").hexdigest()
    assert [each["sha256"] for each in elsewhere] == [release.NOT_BUILT] * 2
    assert missing == ["kubectl-grace-linux-arm64.tar.gz", "kubectl-grace-darwin-arm64.tar.gz"]


def test_a_package_that_lacks_something_is_refused(tmp_path: Path) -> None:
    wheel = tmp_path / "gracectl-1.0-py3-none-any.whl"
    metadata = "Metadata-Version: 2.4\nName: gracectl\nVersion: 1.0\nDescription-Content-Type: text/markdown\n\nWords"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("gracectl-1.0.dist-info/METADATA", metadata)
        archive.writestr("gracectl-1.0.dist-info/licenses/LICENSE", "")
    with pytest.raises(CannotRelease, match="no addresses"):
        release.check_package(wheel, "gracectl", "1.0")
    metadata = metadata.replace("Version: 1.0\n", "Version: 1.0\nProject-URL: Homepage, https://example.com\n")
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("gracectl-1.0.dist-info/METADATA", metadata)
        archive.writestr("gracectl-1.0.dist-info/licenses/LICENSE", "")
    with pytest.raises(CannotRelease, match=r"gracectl/py\.typed: missing"):
        release.check_package(wheel, "gracectl", "1.0")
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("gracectl-1.0.dist-info/METADATA", metadata.replace("Version: 1.0\n", "Version: one\n"))
    with pytest.raises(CannotRelease, match="metadata is not valid"):
        release.check_package(wheel, "gracectl", "1.0")


def test_a_package_can_be_published(tmp_path: Path) -> None:
    # The smaller one: gracectl's takes seconds.
    built = release.build_package(ROOT / "kubesim", tmp_path, "kubesim", __version__, "OWNER/gracectl")
    assert [file.name for file in built] == [
        f"kubesim-{__version__}-py3-none-any.whl",
        f"kubesim-{__version__}.tar.gz",
    ]
    with zipfile.ZipFile(built[0]) as wheel:
        metadata = wheel.read(f"kubesim-{__version__}.dist-info/METADATA").decode()
    assert "\nProject-URL: Issues, https://github.com/OWNER/gracectl/issues\n" in metadata
    assert f"](https://github.com/OWNER/gracectl/blob/v{__version__}/kubesim/docs/scenarios.md" in metadata
    assert "Project-URL" not in (ROOT / "kubesim" / "pyproject.toml").read_text()


@pytest.mark.parametrize(
    ("markdown", "address"),
    [
        ("[a](docs/a.md)", "[a](https://github.com/O/g/blob/v1/kubesim/docs/a.md)"),
        ("[a](../docs/a.md#b)", "[a](https://github.com/O/g/blob/v1/docs/a.md#b)"),
        ("![a](docs/a.svg)", "![a](https://raw.githubusercontent.com/O/g/v1/kubesim/docs/a.svg)"),
        ("[a](https://example.com/a) [b](#c)", "[a](https://example.com/a) [b](#c)"),
    ],
)
def test_links_within_the_repository_get_an_address(markdown: str, address: str) -> None:
    assert release.linked(markdown, "O/g", "1", "kubesim/") == address


def test_the_chart_gets_its_addresses_and_keeps_the_rest(tmp_path: Path) -> None:
    for name in ("Chart.yaml", "README.md"):
        shutil.copy(ROOT / "helm" / "gracectl" / name, tmp_path / name)
    before = yaml.safe_load((tmp_path / "Chart.yaml").read_text())
    release._address_chart(tmp_path / "Chart.yaml", "ghcr.io/o/g", "O/g")
    chart = yaml.safe_load((tmp_path / "Chart.yaml").read_text())
    assert chart.pop("home") == "https://github.com/O/g"
    assert chart.pop("sources") == [f"https://github.com/O/g/tree/v{__version__}"]
    (image,) = yaml.safe_load(chart["annotations"].pop("artifacthub.io/images"))
    assert image["image"] == f"ghcr.io/o/g:{__version__}"
    assert chart == before
    assert f"](https://github.com/O/g/blob/v{__version__}/docs/install.md)" in (tmp_path / "README.md").read_text()
