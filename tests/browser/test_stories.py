"""The page of `gracectl ui` on a cluster that runs: the commands themselves, in processes of their own."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Page, expect

Open = Callable[..., Page]

ADDRESS = re.compile(r"The board is at (http://127\.0\.0\.1:\d+/)")


@contextmanager
def command(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A gracectl that serves the page, and its address; at the end it is interrupted, and ends in order."""
    line = [sys.executable, "-m", "gracectl", *arguments]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            yield process, address_of(process)
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate()


def address_of(process: subprocess.Popen[str]) -> str:
    """The address that the command prints."""
    said = []
    assert process.stdout is not None
    for line in process.stdout:
        said.append(line)
        if found := ADDRESS.search(line):
            return found[1]
    pytest.fail(f"it has printed no address: {said}")


def test_the_demo_from_its_beginning_to_its_end(open_page: Open) -> None:
    with command("demo", "--ui", "--nodes", "5", "--pods", "40", "--speed", "4") as (_, address):
        page = open_page(address)
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
