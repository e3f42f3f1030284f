"""Target of fuzzing: a decoder of foreign bytes, or what is made of its values at once."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec
from hypothesis import strategies as st

from fuzz.effort import bounded_memory, bounded_work
from fuzz.material import spoilt

CORPUS: Final = Path(__file__).parent / "corpus"
"""A directory for each target: real shapes, and every input that has failed."""

SPELLING: Final = ("utf-8", "surrogatepass")
"""Of texts in files."""

MEASURED: Final = 16
"""Counting memory takes several times as long as all else."""

POLICY_SHARE: Final = 20
"""What is decided of an object may take more work than decoding it."""


class Target(msgspec.Struct, frozen=True):
    """What is fuzzed, by which inputs; `share`: how much more work than decoding it may be. `examples`: of an ordinary
    run of the tests. `is_text`: it is given texts, not bytes.
    """

    name: str
    inputs: st.SearchStrategy[Any]
    run: Callable[[Any], None]
    share: int = 1
    examples: int = 24
    is_text: bool = False

    def __call__(self, given: bytes | str) -> None:
        """Try one input, within its bounds of work; one in MEASURED also within those of memory."""
        with bounded_work(len(given), self.share):
            self.run(given)
        body = given if isinstance(given, bytes) else given.encode(*SPELLING)
        if zlib.crc32(body) % MEASURED == 0:
            self.measure(given)

    def measure(self, given: bytes | str) -> None:
        """Try an input, which must have been tried before, within its bounds of memory."""
        with bounded_memory(len(given), self.share):
            self.run(given)

    @property
    def all_inputs(self) -> st.SearchStrategy[Any]:
        """Made inputs, and those of the corpus, whole or spoilt."""
        kept = [each for _, each in self.kept()]
        if not kept:
            return self.inputs
        whole = st.sampled_from([each if isinstance(each, bytes) else each.encode(*SPELLING) for each in kept])
        found = whole | spoilt(whole)
        return self.inputs | (found.map(lambda body: body.decode("utf-8", "replace")) if self.is_text else found)

    def kept(self) -> tuple[tuple[str, bytes | str], ...]:
        """The corpus: names of files, and what is in them."""
        files = sorted(file for file in (CORPUS / self.name).glob("*") if file.is_file())
        return tuple((file.name, self._read(file.read_bytes())) for file in files)

    def keep(self, given: bytes | str) -> Path:
        """Put an input that has failed into the corpus."""
        body = given if isinstance(given, bytes) else given.encode(*SPELLING)
        file = CORPUS / self.name / f"failed-{hashlib.sha256(body).hexdigest()[:12]}"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(body)
        return file

    def _read(self, body: bytes) -> bytes | str:
        return body.decode(*SPELLING) if self.is_text else body


def refusal_of(call: Callable[[], object], refusal: type[Exception]) -> str:
    """What the documented exception says; empty without one."""
    try:
        call()
    except refusal as error:
        return str(error)
    return ""
