"""Hook of the docs site: pages of docs/ may link to any file of the repository, and lists must be lists.

A file outside docs/ that a page links to becomes part of the site, under `repository/`, and links to it are rewritten.
Markdown that GitHub accepts and the renderer of the site does not (a list without a blank line before it) is an error.
"""

from __future__ import annotations

import logging
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).parent.parent
OUTSIDE: Final = "repository/"
"""Folder of the site for files outside docs/."""

LINK: Final = re.compile(r"(!?\[[^\]]*\]\()([^)\s#]+)((?:#[^)\s]*)?\))")
FENCE: Final = re.compile(r"^( *)(```|~~~).*?^\1\2", re.MULTILINE | re.DOTALL)
UNRENDERED: Final = re.compile(r"<p>(?:(?!</p>).)*?^(?:[-*] |\d+\. |\||```)[^\n]*", re.MULTILINE | re.DOTALL)

log = logging.getLogger("mkdocs.hooks.docs_site")


def path_of(src_uri: str) -> str:
    """Path in the repository of a file of the site."""
    return src_uri.removeprefix(OUTSIDE) if src_uri.startswith(OUTSIDE) else f"docs/{src_uri}"


def uri_of(path: str) -> str:
    """Path in the site of a file of the repository."""
    return path.removeprefix("docs/") if path.startswith("docs/") else OUTSIDE + path


def targets(path: str) -> Iterator[str]:
    """Files of the repository that a page links to."""
    for _, target, _ in LINK.findall(FENCE.sub("", (ROOT / path).read_text(encoding="utf-8"))):
        if "://" not in target:
            yield posixpath.normpath(posixpath.join(posixpath.dirname(path), target))


def on_files(files: Files, config: Any) -> Files:
    """Add the linked files outside docs/, and those that pages among them link to."""
    unread = [path_of(file.src_uri) for file in files if file.src_uri.endswith(".md")]
    while unread:
        for path in targets(unread.pop()):
            known = files.get_file_from_path(uri_of(path)) is not None
            if not known and not path.startswith("docs/") and (ROOT / path).is_file():
                files.append(File.generated(config, uri_of(path), abs_src_path=str(ROOT / path)))
                unread += [path] if path.endswith(".md") else []
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Rewrite links that leave docs/, or come from outside it."""
    path = path_of(page.file.src_uri)

    def rewritten(link: re.Match[str]) -> str:
        if "://" in link[2]:
            return link[0]
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), link[2]))
        return f"{link[1]}{posixpath.relpath(uri_of(target), posixpath.dirname(page.file.src_uri))}{link[3]}"

    parts, end = [], 0
    for fence in FENCE.finditer(markdown):
        parts += [LINK.sub(rewritten, markdown[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, LINK.sub(rewritten, markdown[end:])])


def on_page_content(html: str, page: Page, **_: Any) -> str:
    """Warn of a list, table or fence that has become text; with --strict that is an error."""
    for found in UNRENDERED.finditer(html):
        line = found[0].splitlines()[-1]
        log.warning("%s: not rendered: %r; put a blank line before it, and indent by four", page.file.src_uri, line)
    return html
