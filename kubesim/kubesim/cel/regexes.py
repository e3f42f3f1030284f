"""Regular expressions as Go reads them (RE2), for patterns of schemas and for expressions.

Differences to Python are translated (`$` matches only at the end; ASCII classes; `\\z`; POSIX classes), and syntax that
RE2 lacks (look-around, back-references) is refused.
"""

from __future__ import annotations

import re
import warnings
from functools import lru_cache
from typing import Final

_POSIX: Final = {
    "alnum": "0-9A-Za-z",
    "alpha": "A-Za-z",
    "digit": "0-9",
    "lower": "a-z",
    "upper": "A-Z",
    "punct": "!-/:-@[-`{-~",
    "space": r"\t\n\v\f\r ",
    "word": "0-9A-Za-z_",
    "xdigit": "0-9A-Fa-f",
}
_TOKEN: Final = re.compile(
    r"""\\(?P<escape>.)
      | \[:(?P<posix>\^?\w+):\]
      | (?P<class>\[\^?\]?)
      | (?P<end>\])
      | (?P<dollar>\$)
      | (?P<look>\(\?<?[=!])
      | \{(?P<count>\d+,?\d*)\}
    """,
    re.DOTALL | re.VERBOSE,
)

MOST_REPEATS: Final = 1000


class PatternError(ValueError):
    """It is no regular expression."""


@lru_cache(maxsize=4096)
def compiled(pattern: str) -> re.Pattern[str]:
    """The pattern, ready to search with. Raises PatternError, worded as Go words it where that is easy."""
    try:
        with warnings.catch_warnings():
            # Python warns of what a coming grammar of character classes might mean; Go's means what it always meant.
            warnings.simplefilter("ignore", FutureWarning)
            return re.compile(_translated(pattern), re.ASCII)
    except re.error as error:
        what = error.msg
        if "unterminated subpattern" in what:
            what = "missing closing )"
        elif "unbalanced parenthesis" in what:
            what = "unexpected )"
        elif "unterminated character set" in what:
            what = "missing closing ]"
        elif "nothing to repeat" in what:
            what = "missing argument to repetition operator"
        raise PatternError(f"error parsing regexp: {what}: `{pattern}`") from None


def _translated(pattern: str) -> str:
    in_class = False

    def replaced(found: re.Match[str]) -> str:
        nonlocal in_class
        text = found.group()
        if found["escape"] is not None:
            if found["escape"] in "123456789" and not in_class:
                raise PatternError(f"error parsing regexp: invalid escape sequence: `{text}`")
            return {"z": r"\Z"}.get(found["escape"], text)
        if found["posix"] is not None:
            return _POSIX.get(found["posix"], text) if in_class else text
        if found["class"] is not None:
            if in_class:
                return "\\" + text[0] + text[1:]
            in_class = True
            return text[:-1] + "\\]" if text.endswith("]") else text
        if found["end"] is not None:
            in_class = False
            return text
        if in_class:
            return text
        if found["look"] is not None:
            raise PatternError(f"error parsing regexp: invalid or unsupported Perl syntax: `{text}`")
        if found["count"] is not None:
            if max(map(int, filter(None, found["count"].split(",")))) > MOST_REPEATS:
                raise PatternError(f"error parsing regexp: invalid repeat count: `{text}`")
            return text
        return r"\Z"

    return _TOKEN.sub(replaced, pattern)
