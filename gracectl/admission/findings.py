"""What is wrong with an object that somebody writes: field by field, told whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from gracectl.admission.reviews import Denial, Question
from gracectl.model.envelope import StatusCause

UNPROCESSABLE: Final = 422


class Finding(msgspec.Struct, frozen=True):
    """A field that cannot stay so: its path, what is wrong with it and what would be right. `cause` is the API's word
    for what is wrong."""

    field: str
    text: str
    cause: str = "FieldValueInvalid"


def invalid(question: Question, what: str, findings: Sequence[Finding]) -> Denial:
    """The denial of an object with these faults (422, as a server's own validation has it); `what`: `NodeClaim a`."""
    told = "; ".join(f"{each.field}: {each.text}" for each in findings)
    return Denial(
        code=UNPROCESSABLE,
        reason="Invalid",
        message=f"{what} is invalid: {told}",
        resource=question.resource,
        name=question.name,
        causes=tuple(StatusCause(each.cause, each.text, each.field) for each in findings),
    )


def misread(error: msgspec.DecodeError) -> Finding:
    """A field that has the wrong type, from what the decoder says: `Expected `str`, got `int` - at `$.spec.x``."""
    reason, _, place = str(error).partition(" - at `")
    return Finding(place.rstrip("`").removeprefix("$").removeprefix(".") or "the object", reason)
