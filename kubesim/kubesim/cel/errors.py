"""What is wrong with an expression: before it runs (a definition is refused) and while it runs (an object is)."""

from __future__ import annotations


class CompileError(Exception):
    """The expression says nothing that can be run. `offset`: the character it is about."""

    def __init__(self, message: str, offset: int) -> None:
        super().__init__(message)
        self.message = message
        self.offset = offset

    def shown_in(self, source: str) -> str:
        """The message as cel-go prints it: line and column, and the line with a mark under the character."""
        before = source[: self.offset]
        line, column = before.count("\n"), self.offset - (before.rfind("\n") + 1)
        text = source.split("\n")[line]
        return f"ERROR: <input>:{line + 1}:{column + 1}: {self.message}\n | {text}\n | {'.' * column}^"


class EvaluationError(Exception):
    """The expression has no value for this object: a key is missing, a number too large."""


def no_overload() -> EvaluationError:
    """An operator or function met values that it is not made for."""
    return EvaluationError("no such overload")


def not_convertible(source: str, target: str) -> EvaluationError:
    """A value that cannot be read as another type."""
    return EvaluationError(f"type conversion error from '{source}' to '{target}'")
