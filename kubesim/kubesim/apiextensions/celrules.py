"""Rules of a schema (`x-kubernetes-validations`): compiled with the definition, run when an object is written.

A rule that uses oldSelf runs only if there is an old value. An unchanged value is not checked again (ratcheting).
https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/#validation-rules
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any, Final

from kubesim.apiextensions.values import ABSENT, NO_PLACE, key_of
from kubesim.cel.errors import CompileError, EvaluationError
from kubesim.cel.program import Program, compile_expression
from kubesim.cel.types import BOOL, STRING, Exposed, Type, exposed, maybe
from kubesim.cel.values import Maybe
from kubesim.server.status import DUPLICATE, FORBIDDEN, REQUIRED, Cause
from kubesim.types.schema import Schema

VALIDATIONS: Final = "x-kubernetes-validations"
MESSAGE_LIMIT: Final = 5 * 1024


class Rule:
    """One compiled rule. Raises CompileError when made of what does not compile."""

    def __init__(self, raw: Mapping[str, Any], self_type: Type) -> None:
        self.text: str = raw["rule"].strip()
        self.message: str = raw.get("message", "").strip()
        self.reason: str = raw.get("reason", "")
        self.field_path: str = raw.get("fieldPath", "")
        self.optional_old = bool(raw.get("optionalOldSelf"))
        variables = {"self": self_type, "oldSelf": maybe(self_type) if self.optional_old else self_type}
        self.program = compile_expression(raw["rule"], variables)
        if self.program.type != BOOL:
            raise CompileError("cel expression must evaluate to a bool", -1)
        self.uses_old = "oldSelf" in self.program.variables
        self._variables = variables
        self._wording: str = raw.get("messageExpression", "")

    @cached_property
    def wording(self) -> Program | None:
        """The compiled messageExpression. Raises CompileError."""
        if not self._wording:
            return None
        program = compile_expression(self._wording, self._variables)
        if program.type != STRING:
            raise CompileError("messageExpression must evaluate to a string", -1)
        return program

    def compile_wording(self) -> None:
        """Raises CompileError if the messageExpression is none."""
        assert self.wording is None or self.wording.type == STRING

    @property
    def name(self) -> str:
        """What error messages call the rule."""
        return self.message or self.text

    def words(self, scope: Mapping[str, Any]) -> str:
        """What is said when the rule is broken."""
        plain = self.message or f"failed rule: {self.text}"
        if self.wording is None:
            return plain
        try:
            text = str(self.wording.run(scope)).strip()
        except EvaluationError:
            return plain
        return text if text and "\n" not in text and len(text) <= MESSAGE_LIMIT else plain


class Rules:
    """The rules of a node of a schema and of all that is in it."""

    def __init__(self, schema: Schema, self_exposed: Exposed | None, *, root: bool = False) -> None:
        self._schema = schema
        self._exposed = self_exposed
        self._type = "object" if root else schema.type
        raw = schema.raw.get(VALIDATIONS) or () if self_exposed is not None else ()
        self._rules = [Rule(each, self_exposed.type) for each in raw] if self_exposed is not None else []

    @cached_property
    def _fields(self) -> Mapping[str, Rules]:
        found = {name: rules_of(field) for name, field in self._schema.properties.items()}
        return {name: rules for name, rules in found.items() if rules is not None}

    @cached_property
    def _additional(self) -> Rules | None:
        return None if self._schema.additional is None else rules_of(self._schema.additional)

    @cached_property
    def _items(self) -> Rules | None:
        return None if self._schema.items is None else rules_of(self._schema.items)

    def faults(self, value: Any, old: Any = ABSENT) -> list[Cause]:
        """The rules that an object breaks, which was `old` before a change."""
        return list(self._broken(value, "", old, value is old))

    def _broken(self, value: Any, path: str, old: Any, unchanged: bool) -> Iterator[Cause]:
        """`unchanged`: the value stands in something that did not change."""
        if value is None:
            return
        unchanged = unchanged or (old is not ABSENT and value == old)
        if self._rules:
            yield from self._own(value, path, old, unchanged)
        if isinstance(value, list) and self._items is not None:
            before = self._correlated(old)
            for index, item in enumerate(value):
                yield from self._items._broken(item, f"{path}[{index}]", before(item), unchanged)
        elif isinstance(value, dict):
            known = old if isinstance(old, dict) else {}
            for name, item in value.items():
                if name in self._fields:
                    place = f"{path}.{name}" if path else name
                    yield from self._fields[name]._broken(item, place, known.get(name, ABSENT), unchanged)
                elif self._additional is not None and name not in self._schema.properties:
                    place = f"{path}[{name}]"
                    yield from self._additional._broken(item, place, known.get(name, ABSENT), unchanged)

    def _own(self, value: Any, path: str, old: Any, unchanged: bool) -> Iterator[Cause]:
        assert self._exposed is not None
        if unchanged and not any(rule.uses_old for rule in self._rules):
            return
        try:
            scope = {"self": self._exposed.value(value)}
            before = Maybe() if old is ABSENT or old is None else Maybe((self._exposed.value(old),))
        except (ValueError, TypeError, AttributeError):
            return  # an old value that its schema no longer describes: the schema has its say elsewhere
        for rule in self._rules:
            if unchanged and not rule.uses_old:
                continue
            if rule.uses_old and not before.values and not rule.optional_old:
                continue
            scope["oldSelf"] = before if rule.optional_old else before.values[0] if before.values else None
            try:
                kept = rule.program.run(scope)
            except EvaluationError as error:
                yield Cause("FieldValueInvalid", self._failure(error, rule), path or NO_PLACE)
                continue
            if kept is not True:
                yield self._cause(rule, scope, path)

    def _failure(self, error: EvaluationError, rule: Rule) -> str:
        if str(error) == "no such overload":
            what = (
                f"'{error}': call arguments did not match a supported operator, function or macro signature for rule: "
                f"{rule.name}"
            )
        else:
            what = f"{error} evaluating rule: {rule.name}"
        return f'Invalid value: "{self._type}": {what}'

    def _cause(self, rule: Rule, scope: Mapping[str, Any], path: str) -> Cause:
        field = f"{path}{rule.field_path}".lstrip(".") or NO_PLACE
        words = rule.words(scope)
        match rule.reason:
            case "FieldValueForbidden":
                return Cause(FORBIDDEN, f"Forbidden: {words}", field)
            case "FieldValueRequired":
                return Cause(REQUIRED, f"Required value: {words}", field)
            case "FieldValueDuplicate":
                return Cause(DUPLICATE, f'Duplicate value: "{self._type}"', field)
        return Cause("FieldValueInvalid", f'Invalid value: "{self._type}": {words}', field)

    def _correlated(self, old: Any) -> Callable[[Any], Any]:
        """Finds what an item was before: only in lists of type map."""
        keys = self._schema.list_keys
        if self._schema.list_type != "map" or not isinstance(old, list):
            return lambda item: ABSENT
        known = {key_of(item, keys): item for item in old if isinstance(item, dict)}
        return lambda item: known.get(key_of(item, keys), ABSENT) if isinstance(item, dict) else ABSENT


def has_rules(schema: Schema) -> bool:
    """Whether there is a rule anywhere in a schema."""
    if schema.raw.get(VALIDATIONS):
        return True
    inside = [*schema.properties.values(), schema.additional, schema.items]
    return any(has_rules(each) for each in inside if each is not None)


def rules_of(schema: Schema, *, root: bool = False) -> Rules | None:
    """The rules of a schema, or None if there are none. Raises CompileError."""
    return Rules(schema, exposed(schema, root=root), root=root) if has_rules(schema) else None
