"""`make bench-compare`: which revision, two folders that measure what they should, and nothing left behind."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from benchmarks import compare
from benchmarks.compare import TREE, CannotCompare, main, resolved, sides

pytestmark = [pytest.mark.real_time, pytest.mark.skipif(shutil.which("git") is None, reason="git is not on PATH")]


def git(tree: Path, *arguments: str) -> str:
    author = ("-c", "user.name=author", "-c", "user.email=author@example.com", "-c", "commit.gpgsign=false")
    return subprocess.run(
        ["git", "-C", str(tree), *author, *arguments], check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary folders are made."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository of three commits: without the package, with it (tag v1), and with benchmarks; then edited."""
    tree = tmp_path / "tree"
    tree.mkdir()
    git(tree, "init", "--quiet")
    for path, text in (
        ("README", "nothing yet"),
        ("gracectl/__init__.py", "is_old = True"),
        ("benchmarks/__init__.py", ""),
        ("benchmarks/micro/test_a.py", "old"),
    ):
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).write_text(text)
        git(tree, "add", "--all")
        git(tree, "commit", "--quiet", "--message", path)
        if path.startswith("gracectl"):
            git(tree, "tag", "v1")
    (tree / "gracectl" / "__init__.py").write_text("is_old = False")
    (tree / "benchmarks" / "micro" / "test_a.py").write_text("new")
    return tree


@pytest.fixture
def measurable(tree: Path, scratch: Path) -> Path:
    """The tree with the real way to measure, the yardstick, and one thing that v1 cannot do."""
    micro = tree / "benchmarks" / "micro"
    for name in ("__init__.py", "pytest.ini", "conftest.py", "budgets.py", "result.py", "test_yardstick.py"):
        shutil.copy(TREE / "benchmarks" / "micro" / name, micro)
    (micro / "test_a.py").write_text(
        "from gracectl import match\n\n"
        "def test_match(measure):\n    measure('one selector against one pod', 1, match)\n"
    )
    (tree / "gracectl" / "__init__.py").write_text("def match(): return sum(range(1000))")
    return tree


def run(tree: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Result:
    monkeypatch.setattr(compare, "TREE", tree)
    return CliRunner().invoke(main, arguments)


def test_a_revision_is_found_by_tag_branch_and_commit(tree: Path) -> None:
    commit = git(tree, "rev-parse", "v1^{commit}")
    assert resolved("v1", tree) == resolved(commit[:10], tree) == commit
    assert resolved("HEAD~2", tree) == commit


@pytest.mark.parametrize("base", ["nosuch", "--all", "v1:README", "HEAD~99"])
def test_an_unknown_revision_says_what_to_name(base: str, tree: Path) -> None:
    with pytest.raises(CannotCompare, match=rf"^there is no revision {base} here.*name a commit, branch or tag"):
        resolved(base, tree)


def test_both_sides_have_the_benchmarks_of_the_tree_and_each_its_own_package(tree: Path, scratch: Path) -> None:
    with sides(resolved("v1", tree), tree) as (there, here):
        assert (there / "gracectl" / "__init__.py").read_text() == "is_old = True"
        assert (here / "gracectl" / "__init__.py").read_text() == "is_old = False"
        for side in (there, here):
            assert (side / "benchmarks" / "micro" / "test_a.py").read_text() == "new"
            assert (side / "benchmarks" / "__init__.py").exists()
    assert (tree / "gracectl" / "__init__.py").read_text() == "is_old = False"


@pytest.mark.parametrize("ending", [None, KeyboardInterrupt(), RuntimeError()], ids=repr)
def test_nothing_is_left_behind(ending: BaseException | None, tree: Path, scratch: Path) -> None:
    def use() -> None:
        with sides(resolved("HEAD", tree), tree) as (there, _):
            assert there.is_relative_to(scratch)
            (there / "gracectl" / "report.json").write_text("not committed")
            if ending is not None:
                raise ending

    if ending is None:
        use()
    else:
        with pytest.raises(type(ending)):
            use()
    assert not any(scratch.iterdir())
    assert git(tree, "worktree", "list").count("\n") == 0


def test_a_revision_without_the_package_is_refused_and_leaves_nothing_behind(tree: Path, scratch: Path) -> None:
    with pytest.raises(CannotCompare, match="has no package gracectl"), sides(resolved("HEAD~3", tree), tree):
        pass
    assert not any(scratch.iterdir())
    assert git(tree, "worktree", "list").count("\n") == 0


@pytest.mark.parametrize(("arguments", "words"), [
    ((), "with which revision? make bench-compare BASE=main names one"),
    (("",), "with which revision?"),
    (("nosuch",), "there is no revision nosuch here"),
    (("HEAD", "--rounds", "0"), "'--rounds'"),
    (("HEAD", "--threshold", "1"), "'--threshold'"),
])  # fmt: skip
def test_what_cannot_be_compared_is_said_and_ends_with_2(
    arguments: tuple[str, ...], words: str, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = run(tree, monkeypatch, *arguments)
    assert result.exit_code == 2
    assert words in result.output


def test_what_base_cannot_do_is_told_with_the_reason(measurable: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(measurable, monkeypatch, "v1", "--rounds", "1", "-o", "json")
    report = json.loads(result.stdout)
    marks = {row["name"]: row["mark"] for row in report["rows"]}
    assert marks == {"one selector against one pod": "not in BASE", "yardstick": ""}
    assert "cannot import name 'match' from 'gracectl'" in report["notes"][0]
    assert result.exit_code == 2, "nothing of gracectl was compared"


@pytest.mark.thorough
def test_what_both_can_do_is_compared(measurable: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git(measurable, "commit", "--quiet", "--all", "--message", "both")
    result = run(measurable, monkeypatch, "HEAD", "--rounds", "1", "--threshold", "1000", "-k", "match")
    assert "one selector against one pod" in result.stdout
    assert "× " in result.stdout
    assert result.exit_code == 0


def test_another_package_is_never_measured_instead(measurable: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git(measurable, "checkout", "--quiet", "--orphan", "elsewhere")
    (measurable / "gracectl" / "__init__.py").write_text("__file__ = '/elsewhere/gracectl/__init__.py'")
    git(measurable, "commit", "--quiet", "--all", "--message", "as if installed elsewhere")
    result = run(measurable, monkeypatch, "HEAD", "--rounds", "1")
    assert result.exit_code == 2
    assert "but /elsewhere/gracectl/__init__.py" in result.output
