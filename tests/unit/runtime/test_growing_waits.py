"""Growing waits are computed by tenacity, in one module: nothing else multiplies a wait by itself or by a power."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import gracectl

PACKAGE = Path(gracectl.__file__).parent
BACKOFF = PACKAGE / "runtime" / "backoff.py"
WAIT = re.compile(r"wait|delay|pause|backoff|seconds|retry|interval|sleep|timeout|patience", re.IGNORECASE)
GROWING = (ast.Mult, ast.Pow, ast.LShift)


def growing_waits(source: str) -> list[str]:
    """Statements of `source` that compute a growing wait."""
    statements = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.stmt))
    simple = (node for node in statements if not hasattr(node, "body"))
    return [text for node in simple if any(_growth(node)) and WAIT.search(text := ast.unparse(_bare(node)))]


def _bare(statement: ast.stmt) -> ast.Module:
    """Copy without the words of messages."""
    copy = ast.parse(ast.unparse(statement))
    _WithoutText().visit(copy)
    return copy


class _WithoutText(ast.NodeTransformer):
    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        return ast.Constant("") if isinstance(node.value, str) else node


def _growth(statement: ast.stmt) -> Iterator[ast.AST]:
    if isinstance(statement, ast.AugAssign) and isinstance(statement.op, GROWING):
        yield statement
    for node in ast.walk(statement):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow | ast.LShift):
            if not isinstance(node.right, ast.Constant):
                yield node
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            targets = getattr(statement, "targets", [getattr(statement, "target", None)])
            if {ast.unparse(each) for each in targets if each} & {ast.unparse(node.left), ast.unparse(node.right)}:
                yield node
        elif isinstance(node, ast.Tuple | ast.List) and _is_table(node):
            yield node


def _is_table(node: ast.Tuple | ast.List) -> bool:
    """Numbers of which each is twice the one before."""
    numbers = [
        float(each.value)
        for each in node.elts
        if isinstance(each, ast.Constant) and isinstance(each.value, int | float)
    ]
    return len(numbers) == len(node.elts) > 2 and all(a and b / a == 2 for a, b in pairwise(numbers))


def test_no_module_computes_a_growing_wait() -> None:
    places = {str(path): growing_waits(path.read_text(encoding="utf-8")) for path in PACKAGE.rglob("*.py")}
    assert {path: statements for path, statements in places.items() if statements} == {}


def test_tenacity_computes_them() -> None:
    imported = {node.module for node in ast.walk(ast.parse(BACKOFF.read_text())) if isinstance(node, ast.ImportFrom)}
    assert {"tenacity", "tenacity.wait"} <= imported
