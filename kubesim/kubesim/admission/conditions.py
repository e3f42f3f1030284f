"""Match conditions of webhooks: CEL expressions.

https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/#matching-requests-matchconditions
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from kubesim.cel.errors import CompileError, EvaluationError
from kubesim.cel.program import Program, compile_expression
from kubesim.cel.types import BOOL, DYN
from kubesim.server.api import JsonObject

VARIABLES: Final = dict.fromkeys(("object", "oldObject", "request"), DYN)
"""What expressions may look at. (A real server has `authorizer`, too.)"""

KEPT: Final = 1024
"""So many compiled expressions are kept."""


class ConditionFault(Exception):
    """A match condition that cannot be evaluated; the text says why."""


def condition_fault(expression: str) -> str:
    """What is wrong with an expression that must give a bool, or "" (wording: a real server, 1.33)."""
    try:
        type_ = _compiled(expression).type
    except CompileError as error:
        return f"compilation failed: {error.shown_in(expression)}"
    return "" if type_ == BOOL else f"must evaluate to bool but got {type_}"


def condition_holds(expression: str, request: JsonObject) -> bool:
    """Whether an expression, which has no fault, is true of an AdmissionRequest. Raises ConditionFault."""
    variables = {"request": request, "object": request["object"], "oldObject": request["oldObject"]}
    try:
        return _compiled(expression).run(variables) is True
    except EvaluationError as error:
        raise ConditionFault(str(error)) from None


@lru_cache(maxsize=KEPT)
def _compiled(expression: str) -> Program:
    return compile_expression(expression, VARIABLES)
