"""Match conditions: CEL expressions that spare a webhook what is none of its business.

CEL itself is handed in from above (its room stands beside this one); here is what kube-apiserver makes of it: which
variables there are, that an expression must give a bool, and how it words what is wrong.
https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/#matching-requests-matchconditions
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from gracectl.sim.server.api import JsonObject

VARIABLES: Final = ("object", "oldObject", "request")
"""What expressions may look at. (A real server has `authorizer`, too.)"""


class ConditionFault(Exception):
    """A match condition that cannot be evaluated; the text says why."""


class Program(Protocol):
    """A compiled expression."""

    @property
    def type(self) -> object:
        """The type of its value; its text is CEL's name for it."""
        ...

    @property
    def run(self) -> Callable[[Mapping[str, Any]], Any]:
        """Computes the value over variables."""
        ...


class Conditions(Protocol):
    """Evaluates match conditions."""

    def fault(self, expression: str) -> str:
        """What is wrong with an expression that must give a bool, or ""."""
        ...

    def holds(self, expression: str, request: JsonObject) -> bool:
        """Whether an expression is true of an AdmissionRequest. Raises ConditionFault."""
        ...


class CelConditions:
    """Match conditions by a CEL compiler. Compiled expressions are kept."""

    def __init__(
        self,
        compile_: Callable[[str], Program],
        *,
        unreadable: Callable[[str, Exception], str],
        faults: tuple[type[Exception], ...],
    ) -> None:
        """`compile_` compiles an expression over VARIABLES; it and the programs raise `faults`; `unreadable` words
        one that compiling an expression raised."""
        self._compile = compile_
        self._unreadable = unreadable
        self._faults = faults
        self._programs: dict[str, Program] = {}

    def fault(self, expression: str) -> str:
        """See Conditions."""
        try:
            program = self._compile(expression)
        except self._faults as error:
            return f"compilation failed: {self._unreadable(expression, error)}"
        return "" if str(program.type) == "bool" else f"must evaluate to bool but got {program.type}"

    def holds(self, expression: str, request: JsonObject) -> bool:
        """See Conditions."""
        variables = {"request": request, "object": request["object"], "oldObject": request["oldObject"]}
        try:
            program = self._programs.get(expression)
            if program is None:
                program = self._programs[expression] = self._compile(expression)
            return program.run(variables) is True
        except self._faults as error:
            raise ConditionFault(str(error)) from None
