"""The site of docs/ in a real browser, as `make docs` builds it and says how to read it."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

ROOT = Path(__file__).parents[2]


class Quiet(SimpleHTTPRequestHandler):
    """The handler of `python -m http.server`, without its log."""

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[str]:
    """Address of the site on a local server."""
    build = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, env={"NO_MKDOCS_2_WARNING": "1", "PATH": ""}, capture_output=True)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def test_the_search_of_the_site_works_from_a_local_server(site: str, open_page: Callable[..., Page]) -> None:
    page = open_page(site)
    page.get_by_role("textbox", name="Search").click()
    page.get_by_role("textbox", name="Search").press_sequentially("do-not-disrupt")
    expect(page.locator(".md-search-result__meta")).to_contain_text("matching documents")
    expect(page.locator(".md-search-result__item").first).to_be_visible()
