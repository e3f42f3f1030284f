"""Pages of docs/ that show what an example prints: where on them it stands, and how it gets there."""

from __future__ import annotations

import re
from collections.abc import Mapping

PLACE = re.compile(r"(<!-- printed by make [a-z]+: (\w+) -->\n```text\n).*?^(```)$", re.DOTALL | re.MULTILINE)


def put_in(page: str, blocks: Mapping[str, str]) -> str:
    """The page with these blocks in place of those that it has. SystemExit if it has other places."""
    found = [place[1] for place in PLACE.findall(page)]
    if sorted(found) != sorted(blocks):
        raise SystemExit(f"the page has places for {', '.join(found)}; what is printed are {', '.join(blocks)}")
    return PLACE.sub(lambda place: f"{place[1]}{blocks[place[2]]}\n{place[3]}", page)
