"""Everything of a release that needs no registry: `tools/release --dry-run`.

Checks that the tree can be released, builds wheels, sdists, the chart, the krew manifest, notes and checksums into
dist/, and says what is pushed where. `--at-tag` is for the workflow, which pushes it: the tag is there then. Without
either the tag is made at the end. A state that cannot be released: exit code 2, and nothing is built.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import posixpath
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from pathlib import Path
from typing import Final

import yaml
from packaging.metadata import Metadata

ROOT: Final = Path(__file__).resolve().parent.parent
PLACEHOLDER: Final = "OWNER/gracectl"
SECTION: Final = r"^## {version} - (?P<date>\d{{4}}-\d{{2}}-\d{{2}}|unreleased)\n(?P<notes>.*?)(?=^## |\Z)"
SOURCES: Final = ("pyproject.toml", "README.md", "LICENSE", "NOTICE", "CHANGELOG.md", "docs")
"""What a project is built of, beside its package."""
SUM: Final = re.compile(r'\{\{ *addURIAndSha "(.+?)" \.TagName *\}\}')
RELATIVE: Final = re.compile(r"(!?\[[^\]]*\]\()([\w./-]+)((?:#[^)\s]*)?\))")
"""Link or picture of Markdown within the repository."""
EXTRAS: Final = "[project.optional-dependencies]\n"
"""Before this table the public addresses stand."""
NOT_BUILT: Final = "0" * 64
"""In place of the checksum of an archive that is built elsewhere."""


class CannotRelease(Exception):
    """The state of the tree; says what is wrong, and the remedy."""


# -- what must be so ---------------------------------------------------------------------------------------------------


def version_of(tree: Path) -> str:
    """The one version. Raises CannotRelease if there are several."""
    chart = yaml.safe_load((tree / "helm/gracectl/Chart.yaml").read_text(encoding="utf-8"))
    kubesim = tomllib.loads((tree / "kubesim/pyproject.toml").read_text(encoding="utf-8"))
    package = re.search(r'^__version__ = "(.+)"$', (tree / "gracectl/__init__.py").read_text(), re.MULTILINE)
    found = {
        "gracectl/__init__.py": package[1] if package else "none",
        "kubesim/pyproject.toml": kubesim["project"]["version"],
        "helm/gracectl/Chart.yaml version": chart["version"],
        "helm/gracectl/Chart.yaml appVersion": chart["appVersion"],
    }
    if len(set(found.values())) > 1:
        listed = ", ".join(f"{place}: {version}" for place, version in found.items())
        raise CannotRelease(f"versions differ: {listed}; write the same one everywhere, then run make chart")
    return str(chart["version"])


def notes_of(tree: Path, version: str, repository: str, *, dated: bool = False) -> str:
    """The version's section of the changelog, with absolute links. `dated`: refuse a section without a date.

    Raises CannotRelease.
    """
    changelog = (tree / "CHANGELOG.md").read_text(encoding="utf-8")
    found = re.search(SECTION.format(version=re.escape(version)), changelog, re.MULTILINE | re.DOTALL)
    if found is None or not found["notes"].strip():
        raise CannotRelease(
            f"CHANGELOG.md: no section for {version}, or an empty one; "
            f"write '## {version} - YYYY-MM-DD' and what has changed"
        )
    if dated and found["date"] == "unreleased":
        raise CannotRelease(f"CHANGELOG.md: {version} has no date; write '## {version} - YYYY-MM-DD'")
    return linked(found["notes"].strip(), repository, version) + "\n"


def linked(markdown: str, repository: str, version: str, folder: str = "") -> str:
    """Markdown with links and pictures that lead somewhere from anywhere. `folder`: of the page, in the repository."""

    def address(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(folder, link[2]))
        if link[1].startswith("!"):
            return f"{link[1]}https://raw.githubusercontent.com/{repository}/v{version}/{path}{link[3]}"
        return f"{link[1]}https://github.com/{repository}/blob/v{version}/{path}{link[3]}"

    return RELATIVE.sub(address, markdown)


def check_git(tree: Path, version: str, *, at_tag: bool) -> None:
    """Raise CannotRelease for changes that are not committed, and for a tag that is there already, or is not."""
    if changed := _git(tree, "status", "--porcelain").splitlines():
        names = ", ".join(line.strip().partition(" ")[2].strip() for line in changed[:3])
        raise CannotRelease(f"not committed: {names}{' …' if changed[3:] else ''}; commit it, or git stash -u")
    tag = f"v{version}"
    tagged = _git(tree, "rev-parse", "--verify", "--quiet", f"refs/tags/{tag}^{{commit}}")
    if at_tag and tagged != _git(tree, "rev-parse", "HEAD"):
        raise CannotRelease(f"tag {tag}: not at this commit; check out the commit that it names")
    if not at_tag and tagged:
        raise CannotRelease(f"tag {tag}: there already; raise the version, with a section of the changelog")


# -- what is built -----------------------------------------------------------------------------------------------------


def build_package(folder: Path, dist: Path, package: str, version: str, repository: str) -> list[Path]:
    """Wheel and sdist of a package, checked. Reproducible: times are those of the commit."""
    into = dist / package
    epoch = {"SOURCE_DATE_EPOCH": _git(folder, "log", "-1", "--format=%ct")}
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / package
        for name in _git(folder, "ls-files", "--", *SOURCES, package).splitlines():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(folder / name, copy / name)
        add_addresses(copy, "" if package == "gracectl" else f"{package}/", version, repository)
        _run([sys.executable, "-m", "hatchling", "build", "-d", str(into.resolve())], copy, env={**os.environ, **epoch})
    files = sorted(into.iterdir())
    if [file.suffix for file in files] != [".whl", ".gz"]:
        raise CannotRelease(f"{package}: built {[file.name for file in files]}, not a wheel and an sdist")
    for file in files:
        check_package(file, package, version)
    return files


def add_addresses(project: Path, folder: str, version: str, repository: str) -> None:
    """Write public addresses into a copy of a project. `folder`: its place in the repository. Raises CannotRelease."""
    address = f"https://github.com/{repository}"
    urls = {
        "Homepage": address,
        "Documentation": f"{address}/tree/v{version}/{folder}docs",
        "Changelog": f"{address}/blob/v{version}/CHANGELOG.md",
        "Issues": f"{address}/issues",
        "Source": f"{address}/tree/v{version}/{folder}",
    }
    table = "".join(f'{name} = "{url}"\n' for name, url in urls.items())
    file = project / "pyproject.toml"
    text = file.read_text(encoding="utf-8")
    if text.count(EXTRAS) != 1:
        raise CannotRelease(f"{folder}pyproject.toml: {EXTRAS.strip()}: not there; see tools/release.py")
    file.write_text(text.replace(EXTRAS, f"[project.urls]\n{table}\n{EXTRAS}"), encoding="utf-8")
    readme = project / "README.md"
    readme.write_text(linked(readme.read_text(encoding="utf-8"), repository, version, folder), encoding="utf-8")


def check_package(file: Path, package: str, version: str) -> None:
    """Raise CannotRelease if an index would refuse the file, or people would miss something in it."""
    if file.suffix == ".whl":
        with zipfile.ZipFile(file) as archive:
            names = archive.namelist()
            raw = archive.read(f"{package}-{version}.dist-info/METADATA")
        needed = {f"{package}/py.typed", f"{package}-{version}.dist-info/licenses/LICENSE"}
    else:
        with tarfile.open(file) as source:
            names = source.getnames()
            member = source.extractfile(f"{package}-{version}/PKG-INFO")
            raw = member.read() if member else b""
        needed = {f"{package}-{version}/{name}" for name in ("pyproject.toml", "README.md", "LICENSE", "NOTICE")}
    try:
        metadata = Metadata.from_email(raw, validate=True)
    except ExceptionGroup as errors:
        listed = "; ".join(str(each) for each in errors.exceptions)
        raise CannotRelease(f"{file.name}: metadata is not valid: {listed}; see pyproject.toml") from errors
    if metadata.description_content_type != "text/markdown" or not metadata.description:
        raise CannotRelease(f"{file.name}: no description in Markdown; see readme in pyproject.toml")
    if not metadata.project_urls:
        raise CannotRelease(f"{file.name}: no addresses; see tools/release.py")
    if missing := needed - set(names):
        raise CannotRelease(f"{file.name}: {', '.join(sorted(missing))}: missing; see tool.hatch in pyproject.toml")


def package_chart(tree: Path, dist: Path, image: str, repository: str) -> Path:
    """The chart, whose image is the published one."""
    helm = next(filter(None, (shutil.which("helm", path=str(Path(sys.executable).parent)), shutil.which("helm"))), None)
    if helm is None:
        raise CannotRelease("helm: not there; run make helm")
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / "gracectl"
        shutil.copytree(tree / "helm/gracectl", copy)
        values = copy / "values.yaml"
        text, count = re.subn(
            r"^  # [^\n]*\n  repository: gracectl$",
            f"  # The published image.\n  repository: {image}",
            values.read_text(encoding="utf-8"),
            flags=re.MULTILINE,
        )
        if count != 1:
            raise CannotRelease(
                "helm/gracectl/values.yaml: image.repository is not where it is replaced; see tools/release.py"
            )
        values.write_text(text, encoding="utf-8")
        _address_chart(copy / "Chart.yaml", image, repository)
        _run([helm, "lint", "--strict", "--quiet", str(copy)], tree)
        _run([helm, "package", str(copy), "--destination", str(dist)], tree)
    (chart,) = dist.glob("gracectl-*.tgz")
    return chart


def _address_chart(file: Path, image: str, repository: str) -> None:
    """Write into Chart.yaml what has no address before: home, sources, and the images that Artifact Hub scans."""
    chart = yaml.safe_load(file.read_text(encoding="utf-8"))
    version = chart["version"]
    chart |= {
        "home": f"https://github.com/{repository}",
        "sources": [f"https://github.com/{repository}/tree/v{version}"],
    }
    images = [{"name": "gracectl", "image": f"{image}:{version}", "platforms": ["linux/amd64", "linux/arm64"]}]
    chart["annotations"]["artifacthub.io/images"] = yaml.safe_dump(images, sort_keys=False)
    file.write_text(yaml.safe_dump(chart, sort_keys=False, allow_unicode=True), encoding="utf-8")
    readme = file.with_name("README.md")
    readme.write_text(
        linked(readme.read_text(encoding="utf-8"), repository, version, "helm/gracectl"), encoding="utf-8"
    )


def krew_manifest(template: str, tag: str, repository: str, dist: Path) -> tuple[str, list[str]]:
    """The manifest, and the names of archives that are not built."""
    missing = []

    def line(place: re.Match[str]) -> str:
        uri = place[1].replace("{{ .TagName }}", tag)
        archive = dist / uri.rpartition("/")[2]
        if not archive.exists():
            missing.append(archive.name)
        return f'uri: {uri}\n      sha256: "{_sum(archive) if archive.exists() else NOT_BUILT}"'

    text = SUM.sub(line, template.replace(PLACEHOLDER, repository)).replace("{{ .TagName }}", tag)
    return text, missing


def _sum(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


# -- all of it ---------------------------------------------------------------------------------------------------------


def release(tree: Path, options: argparse.Namespace) -> None:
    """Check, build, and say what is pushed. Raises CannotRelease."""
    version = version_of(tree)
    notes = notes_of(tree, version, options.repository, dated=not options.dry_run)
    check_git(tree, version, at_tag=options.at_tag)
    tag, image = f"v{version}", f"ghcr.io/{options.repository.lower()}"
    dist = tree / "dist"
    # Archives of the plugin are built before, each on its own system.
    for old in [path for path in dist.glob("*") if not path.name.startswith("kubectl-grace-")]:
        shutil.rmtree(old) if old.is_dir() else old.unlink()
    dist.mkdir(exist_ok=True)
    packages = [
        *build_package(tree, dist, "gracectl", version, options.repository),
        *build_package(tree / "kubesim", dist, "kubesim", version, options.repository),
    ]
    chart = package_chart(tree, dist, image, options.repository)
    manifest, missing = krew_manifest((tree / ".krew.yaml").read_text(encoding="utf-8"), tag, options.repository, dist)
    if missing and options.at_tag:
        raise CannotRelease(f"dist: {', '.join(missing)}: missing; tools/plugin builds each on its own system")
    (dist / "grace.yaml").write_text(manifest, encoding="utf-8")
    (dist / "notes.md").write_text(notes, encoding="utf-8")
    attached = [*packages, chart, dist / "grace.yaml", *sorted(dist.glob("kubectl-grace-*.tar.gz"))]
    sums = "".join(f"{_sum(file)}  {file.name}\n" for file in attached)
    (dist / "SHA256SUMS").write_text(sums, encoding="utf-8")
    print(f"gracectl {version}: built into dist/")
    for file in attached:
        print(f"  {file.relative_to(tree)}  {file.stat().st_size // 1024} KiB")
    for name in missing:
        print(f"  not built here: {name}; tools/plugin builds it on its own system")
    print(f"pushed by the workflow, once the tag {tag} is there:")
    pushed = {
        "image": f"{image}:{version}, linux/amd64 and linux/arm64, with SBOM and provenance, signed",
        "chart": f"oci://{image.rpartition('/')[0]}/charts/gracectl:{version}, signed",
        "packages": f"PyPI: gracectl {version}, kubesim {version}",
        "release": f"https://github.com/{options.repository}/releases/tag/{tag}: dist/, with the notes in it",
    }
    for what, where in pushed.items():
        print(f"  {what:<9} {where}")
    if not (options.dry_run or options.at_tag):
        _run(["git", "tag", "--annotate", tag, "--message", f"gracectl {version}"], tree)
        print(f"tag {tag}: made; to release it: git push origin {tag}")


def _git(tree: Path, *arguments: str) -> str:
    """What git prints; "" where it fails quietly."""
    return subprocess.run(
        ["git", "-C", str(tree), *arguments], capture_output=True, text=True, check=False
    ).stdout.strip()


def _run(command: list[str], folder: Path, env: dict[str, str] | None = None) -> None:
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CannotRelease(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")


def main(arguments: list[str] | None = None, tree: Path = ROOT) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="tools/release", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--dry-run", action="store_true", help="make no tag")
    parser.add_argument("--at-tag", action="store_true", help="the tag is there, at this commit: for the workflow")
    repository = os.environ.get("GITHUB_REPOSITORY", PLACEHOLDER)
    parser.add_argument("--repository", default=repository, metavar="OWNER/NAME", help=f"default: {repository}")
    try:
        release(tree, parser.parse_args(arguments))
    except CannotRelease as reason:
        print(f"release: {reason}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
