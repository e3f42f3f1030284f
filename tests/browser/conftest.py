"""A browser for the page of `gracectl ui`: Chromium, driven by Playwright; without one its tests are skipped."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import pytest
from kubesim_support.patience import PATIENCE
from playwright.sync_api import Browser, ConsoleMessage, Dialog, Page, expect, sync_playwright
from support.boards import BOARD_NOW, BROWSER, FixedClock, ServedBoard, chromium, serving


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for all tests of a file: while Playwright runs, no other test can run an event loop in its thread."""
    executable = chromium()
    if executable is None:
        missing = f"no browser: apt-get install chromium, or name another Chromium by {BROWSER}"
        pytest.fail(missing) if os.environ.get("CI") else pytest.skip(missing)
    expect.set_options(timeout=PATIENCE * 1000)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=executable, args=["--disable-gpu", "--renderer-process-limit=1"]
        )
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Open pages in a context of their own. At the end none may have reported an error or opened a dialog."""
    problems: list[str] = []
    with ExitStack() as stack:

        def note(message: ConsoleMessage) -> None:
            # What a server that is away, or wants a token, answers is logged by the browser itself.
            if message.type in ("error", "warning") and "Failed to load resource" not in message.text:
                problems.append(message.text)

        def refuse(dialog: Dialog) -> None:
            problems.append(f"dialog: {dialog.message}")
            dialog.dismiss()

        def opened(url: str, *, width: int = 1400, height: int = 900, **options: Any) -> Page:
            context = browser.new_context(viewport={"width": width, "height": height}, **options)
            stack.callback(context.close)
            page = context.new_page()
            page.set_default_timeout(PATIENCE * 1000)
            page.on("console", note)
            page.on("pageerror", lambda error: problems.append(str(error)))
            page.on("dialog", refuse)
            page.goto(url)
            return page

        yield opened
    assert problems == []


@pytest.fixture
def serve() -> Iterator[Callable[[Mapping[str, Any]], ServedBoard]]:
    """Serve boards by the real server, on a clock that begins at NOW."""
    with ExitStack() as stack:
        yield lambda state, **more: stack.enter_context(serving(state, FixedClock(BOARD_NOW), **more))
