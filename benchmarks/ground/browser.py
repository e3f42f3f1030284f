"""The page of `gracectl ui` in Chromium: frames that it draws, and what they cost."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from playwright.async_api import Page, async_playwright

from benchmarks.report import Figure

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
VARIABLE = "GRACECTL_CHROMIUM"

FRAMES = """(seconds) => new Promise((done) => {
  const gaps = [], end = performance.now() + 1000 * seconds;
  let last = performance.now();
  const frame = () => {
    const now = performance.now();
    gaps.push(now - last);
    last = now;
    if (now < end) requestAnimationFrame(frame);
    else done(gaps.sort((a, b) => a - b));
  };
  requestAnimationFrame(frame);
})"""
"""Milliseconds between frames, the shortest first."""


def chromium() -> str | None:
    """The browser; None: there is none."""
    return os.environ.get(VARIABLE) or next(filter(None, map(shutil.which, PROGRAMS)), None)


@asynccontextmanager
async def page_at(url: str) -> AsyncIterator[Page]:
    """The page at a URL, with rows on it, while the block runs."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium(), args=["--disable-gpu"])
        try:
            page = await browser.new_page(viewport={"width": 1400, "height": 900})
            await page.goto(url)
            await page.wait_for_selector("#grid .row .node", timeout=120_000)
            yield page
        finally:
            await browser.close()


async def frames(page: Page, seconds: float) -> tuple[Figure, ...]:
    """Frames of a page over so many seconds, in which changes come."""
    session = await page.context.new_cdp_session(page)
    await session.send("Performance.enable")
    before = await _busy(session)
    gaps: list[float] = await page.evaluate(FRAMES, seconds)
    busy = await _busy(session) - before
    return (
        Figure("page: frames a second", len(gaps) / seconds, "", at_least=57.0),
        Figure("page: time between two frames, p95", gaps[int(0.95 * (len(gaps) - 1))], " ms"),
        Figure("page: share of a processor", 100 * busy / seconds, " %"),
    )


async def _busy(session: Any) -> float:
    """Seconds in which the page's main thread has worked."""
    metrics = (await session.send("Performance.getMetrics"))["metrics"]
    return float(next(each["value"] for each in metrics if each["name"] == "TaskDuration"))
