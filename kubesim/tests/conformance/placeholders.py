"""What the placeholders of a recording stand for, and where an answer deviates from the recorded one.

`<uid:1>`, `<rv:3>`… are bound by the first answer that shows them; every later sight must be the same value, and two
placeholders of one kind never share one. `<time>` and its like stand for anything.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping

import msgspec
from conformance.trims import normalised
from kubesim.server.api import Json

PLACEHOLDER = re.compile(r"<(uid|rv|list-rv|bookmark-rv|continue|name|hash|time|age|pointer|ca)(?::\d+)?>")
ANYTHING = {"<time>", "<rv>", "<age>", "<pointer>", "<uid>"}
QUOTED = re.compile(r'Invalid value: ("\{(?:[^"\\]|\\.)*\}")')
MADE_UP = {"uid": "00000000-0000-4000-8000-{:012d}", "time": "2026-01-01T00:00:00Z"}
ABSENT = "(absent)"


class Deviation(msgspec.Struct, frozen=True):
    """One place where an answer is not the recorded one. `at`: `status`, `headers.Warning`, `body.spec.taints[0]`,
    `events[2].object`…; a value that is not there is ABSENT."""

    at: str
    recorded: Json
    here: Json

    def __str__(self) -> str:
        return f"{self.at}: {self.here!r}, recorded {self.recorded!r}"


class Bindings:
    """What the placeholders stand for, as far as answers have shown it."""

    def __init__(self, known: Mapping[str, str] | None = None, clean: Callable[[Json], Json] = normalised) -> None:
        """`known`: what is known before the first answer; `clean` is applied to objects that messages quote."""
        self._values = dict(known or {})
        self._clean = clean

    def copy(self) -> Bindings:
        """The same bindings, to be tried out."""
        return Bindings(self._values, self._clean)

    def knows(self, placeholder: str) -> bool:
        """Whether a placeholder has a value."""
        return placeholder in self._values

    def deviations(self, recorded: Json, here: Json, at: str) -> Iterator[Deviation]:
        """Compare; binds placeholders as it goes."""
        if isinstance(recorded, dict) and isinstance(here, dict):
            for key in dict.fromkeys((*recorded, *here)):
                if key not in here or key not in recorded:
                    yield Deviation(f"{at}.{key}", self.filled(recorded.get(key, ABSENT)), here.get(key, ABSENT))
                else:
                    yield from self.deviations(recorded[key], here[key], f"{at}.{key}")
        elif isinstance(recorded, list) and isinstance(here, list) and len(recorded) == len(here):
            for index, (one, other) in enumerate(zip(recorded, here, strict=True)):
                yield from self.deviations(one, other, f"{at}[{index}]")
        elif isinstance(recorded, str) and isinstance(here, str):
            yield from self._text_deviations(recorded, here, at)
        elif recorded != here or isinstance(recorded, bool) != isinstance(here, bool):
            yield Deviation(at, self.filled(recorded), here)

    def _text_deviations(self, recorded: str, here: str, at: str) -> Iterator[Deviation]:
        """Where a message quotes an object, that is compared as an object: managedFields and the order of fields,
        which recordings do not keep elsewhere either, do not count."""
        quotes = QUOTED.search(recorded), QUOTED.search(here)
        if quotes[0] is not None and quotes[1] is not None:
            objects = [self._clean(json.loads(json.loads(quote[1]))) for quote in quotes if quote is not None]
            yield from self.deviations(objects[0], objects[1], f"{at}.quoted")
            recorded, here = (
                text[: quote.start(1)] + text[quote.end(1) :]
                for text, quote in zip((recorded, here), quotes, strict=True)
                if quote is not None
            )
        if not self._unify(recorded, here):
            yield Deviation(at, self.filled(recorded), here)

    def _unify(self, recorded: str, here: str) -> bool:
        if recorded == here:
            return True
        pattern, end, fresh = "", 0, list[str]()
        for matched in PLACEHOLDER.finditer(recorded):
            pattern += re.escape(recorded[end : matched.start()])
            end = matched.end()
            text = matched.group()
            if text in ANYTHING:
                pattern += ".*?"
            elif text in self._values:
                pattern += re.escape(self._values[text])
            else:
                pattern += "(.+?)"
                fresh.append(text)
        match = re.fullmatch(pattern + re.escape(recorded[end:]), here, re.DOTALL)
        if match is None:
            return False
        return all(self._bind(text, value) for text, value in zip(fresh, match.groups(), strict=True))

    def _bind(self, text: str, value: str) -> bool:
        kind = text.partition(":")[0]
        if any(value == known and text != other and other.startswith(kind) for other, known in self._values.items()):
            return False
        self._values[text] = value
        return True

    def filled(self, recorded: Json) -> Json:
        """The recorded value with its placeholders filled in; those never seen in an answer are made up."""
        if isinstance(recorded, dict):
            return {self.filled(key): self.filled(value) for key, value in recorded.items()}
        if isinstance(recorded, list):
            return [self.filled(item) for item in recorded]
        return PLACEHOLDER.sub(self._value, recorded) if isinstance(recorded, str) else recorded

    def _value(self, match: re.Match[str]) -> str:
        text = match.group()
        if text not in self._values and match[1] in MADE_UP:
            made_up = MADE_UP[match[1]].format(len(self._values))
            if text in ANYTHING:
                return made_up
            self._values[text] = made_up
        return self._values.get(text, text)
