"""The page of `gracectl ui` on a cluster that runs: the commands themselves, in processes of their own."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

pytestmark = pytest.mark.thorough

Open = Callable[..., Page]

ADDRESS = re.compile(r"The board is at (http://127\.0\.0\.1:\d+/)")
READY = re.compile(r"kubectl --kubeconfig (\S+) delete node (\S+)")


@contextmanager
def command(ready: re.Pattern[str], *arguments: str) -> Iterator[re.Match[str]]:
    """A gracectl in a process of its own, and the line by which it says that it is ready; it is interrupted at the
    end."""
    line = [sys.executable, "-m", "gracectl", *arguments]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            yield said_by(process, ready)
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate()


def said_by(process: subprocess.Popen[str], wanted: re.Pattern[str]) -> re.Match[str]:
    """The line that a process prints."""
    said = []
    assert process.stdout is not None
    for line in process.stdout:
        said.append(line)
        if match := wanted.search(line):
            return match
    pytest.fail(f"{wanted.pattern} was not printed: {said}")


def test_the_demo_from_its_beginning_to_its_end(open_page: Open) -> None:
    with command(ADDRESS, "demo", "--ui", "--nodes", "5", "--pods", "40", "--speed", "4") as said:
        page = open_page(said[1])
        # The nodes are deleted when the page is open.
        expect(page.locator(".rows .row:not(.finished) .bar").first).to_be_visible()
        name = page.locator(".rows .row .node").first.inner_text()
        expect(page.locator("dl.tiles")).to_contain_text("3 of 3")
        expect(page.locator(".rows .row.finished")).to_have_count(3)
        expect(page.get_by_role("rowheader", name=name)).to_be_visible()
        expect(page.get_by_role("list", name="Attention")).to_contain_text("Nothing needs attention.")

        page.get_by_role("tab", name="History").click()
        expect(page.locator("#history tbody tr")).to_have_count(3)
        page.get_by_role("tab", name="Events").click()
        expect(page.locator("#events tbody")).to_contain_text("Evicted")
        page.get_by_role("tab", name="Budgets").click()
        assert page.locator("#budgets .budget").count() > 1


def test_a_server_that_is_started_again_and_a_cluster_that_goes_away(open_page: Open, tmp_path: Path) -> None:
    kubeconfig = str(tmp_path / "kubeconfig")
    with ExitStack() as cluster:
        small = ("--nodes", "2", "--pods", "4", "--kubeconfig", kubeconfig)
        cluster.enter_context(command(READY, "simulate", *small))
        with command(ADDRESS, "ui", "--kubeconfig", kubeconfig, "--bind", "127.0.0.1:0") as said:
            address = said[1]
            page = open_page(address)
            attention = page.get_by_role("list", name="Attention")
            expect(attention).to_contain_text("Nothing needs attention.")
            expect(page.get_by_role("status")).to_have_text("live")
        expect(attention).to_contain_text("gracectl ui does not answer")

        bind = address.removeprefix("http://").rstrip("/")
        with command(ADDRESS, "ui", "--kubeconfig", kubeconfig, "--bind", bind):
            expect(page.get_by_role("status")).to_have_text("live")
            cluster.close()
            expect(attention).to_contain_text("API server away")
            expect(page.get_by_role("status")).to_have_text("API server away")
