"""The pages for people: every link leads somewhere, every page can be found, and every alert has its place."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from gracectl.cli.commands import COMMANDS
from gracectl.model.names import NODE_ANNOTATIONS, EventReason

ROOT = Path(__file__).parents[3]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)
FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)


def prose(page: Path) -> str:
    """The text without its code blocks."""
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def anchors(page: Path) -> Iterator[str]:
    """Where links into a page can lead, as GitHub names its headings."""
    seen: dict[str, int] = {}
    for heading in HEADING.findall(prose(page)):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-")
        again = seen.get(slug, 0)
        seen[slug] = again + 1
        yield f"{slug}-{again}" if again else slug


def links(page: Path) -> Iterator[tuple[Path, str]]:
    """What a page links to within the project, and the place there ("": its beginning)."""
    for target in LINK.findall(prose(page)):
        if not re.match(r"[a-z]+:", target):
            path, _, anchor = target.partition("#")
            yield (page.parent / path).resolve() if path else page, anchor


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    for target, anchor in links(page):
        assert target.exists(), f"{page.name}: {target.relative_to(ROOT)} is not there"
        if anchor:
            assert anchor in set(anchors(target)), f"{page.name}: {target.name} has no heading #{anchor}"


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached, unread = {ROOT / "README.md"}, [ROOT / "README.md"]
    while unread:
        for target, _ in links(unread.pop()):
            if target.suffix == ".md" and target.exists() and target not in reached:
                reached.add(target)
                unread.append(target)
    assert not set(PAGES) - reached


@pytest.mark.parametrize("page", sorted(ROOT.glob("docs/*.md")), ids=lambda page: page.name)
def test_every_page_begins_with_an_example(page: Path) -> None:
    beginning, _, _ = page.read_text(encoding="utf-8").partition("\n## ")
    assert re.search(r"^(```|!\[|\| )", beginning, re.MULTILINE), "an example, a picture or a table comes first"


def test_every_event_and_every_annotation_of_ours_is_on_its_page() -> None:
    page = (ROOT / "docs/events.md").read_text()
    assert [reason for reason in EventReason if not re.search(rf"\b{reason}\b", page)] == []
    assert [name for name in NODE_ANNOTATIONS if f"`{name}`" not in page] == []


def test_every_command_is_on_its_page() -> None:
    page = (ROOT / "docs/cli.md").read_text()
    assert [command for command in COMMANDS if not re.search(rf"`{command}`", page)] == []


SECTION = re.compile(
    r"\n## (\w+)\n\n(?!- ).+?\n\n- \*\*Users notice:\*\* .+?\n- \*\*Run first:\*\* `[^`\n]+`\n"
    r"- \*\*Remedy:\*\* .+?(?=\n\n## |\n\Z)",
    re.DOTALL,
)
"""Section of an alert: what it means, what users notice, the first command, the remedy."""


def alerts() -> list[dict[str, Any]]:
    """All rules."""
    rules = yaml.safe_load((ROOT / "helm/gracectl/files/alerts.yaml").read_text())
    return [rule for group in rules["groups"] for rule in group["rules"]]


def test_every_alert_has_one_section_with_all_parts_and_no_other_is_there() -> None:
    page = (ROOT / "docs/alerts.md").read_text()
    names = [rule["alert"] for rule in alerts()]
    assert re.findall(r"^## (.+)$", page, re.MULTILINE) == names
    assert SECTION.findall(page) == names


def test_every_alert_leads_to_its_section() -> None:
    places = list(anchors(ROOT / "docs/alerts.md"))
    for rule in alerts():
        url = urlsplit(rule["annotations"]["runbook_url"])
        assert (url.scheme, PurePosixPath(url.path).stem, url.fragment) == ("https", "alerts", rule["alert"].lower())
        assert places.count(url.fragment) == 1


def test_alerts_are_listed_by_their_severity() -> None:
    page = (ROOT / "docs/alerts.md").read_text()
    for severity in ("critical", "warning", "info"):
        (row,) = re.findall(rf"^\| {severity}: .*$", page, re.MULTILINE)
        assert re.findall(r"\[(\w+)\]", row) == [r["alert"] for r in alerts() if r["labels"]["severity"] == severity]


def test_the_collector_of_its_page_is_the_example_and_scrapes_what_the_chart_deploys() -> None:
    page, file = (ROOT / "docs/collector.md").read_text(), (ROOT / "examples/collector/config.yaml").read_text()
    assert f"```yaml\n{file}```" in page
    collector = yaml.safe_load(file)
    pipelines = collector["service"]["pipelines"]
    for pipeline in pipelines.values():
        assert pipeline["processors"][0] == "memory_limiter"
        for kind, names in pipeline.items():
            assert set(names) <= set(collector[kind])
    used = {kind: {name for each in pipelines.values() for name in each[kind]} for kind in pipelines["traces"]}
    assert used == {kind: set(collector[kind]) for kind in ("receivers", "processors", "exporters")}
    (job,) = collector["receivers"]["prometheus"]["config"]["scrape_configs"]
    (discovery,) = job["kubernetes_sd_configs"]
    manifests = list(yaml.safe_load_all((ROOT / "helm/manifests/gracectl.yaml").read_text()))
    (deployment,) = (each for each in manifests if each and each["kind"] == "Deployment")
    assert discovery["namespaces"]["names"] == [deployment["metadata"]["namespace"]]
    pod = deployment["spec"]["template"]
    name, _, value = discovery["selectors"][0]["label"].partition("=")
    assert pod["metadata"]["labels"][name] == value
    ports = [port["name"] for container in pod["spec"]["containers"] for port in container["ports"]]
    assert job["relabel_configs"][0]["regex"] in ports
    assert job["relabel_configs"][0]["action"] == "keep"
