"""Score of a random sample of mutations, as cosmic-ray makes them: `make mutants-sample`.

What changes an annotation or `frozen` only is left out: no behaviour depends on it.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
from cosmic_ray.ast import Visitor, get_ast
from cosmic_ray.operators.provider import OperatorProvider

from mutants.catalogue import ROOT
from mutants.run import Unusable, failing, plant, spread, warm

WITH_ARGUMENTS = frozenset({"VariableReplacer", "VariableInserter"})


class Place(msgspec.Struct, frozen=True):
    """The `number`th place of a file to which an operator applies."""

    file: Path
    operator: str
    number: int


class _Mutation(Visitor):  # type: ignore[misc]  # it has no types
    """Counts the places of an operator, and changes one of them."""

    def __init__(self, operator: Any, number: int = -1) -> None:
        self._operator = operator
        self._number = number
        self.count = 0

    def visit(self, node: Any) -> Any:
        for index, _ in enumerate(self._operator.mutation_positions(node)):
            if self.count == self._number:
                node = self._operator.mutate(node, index)
            self.count += 1
        return node


def sample(files: Sequence[Path], rng: random.Random) -> Iterator[tuple[Place, str]]:
    """Mutations without end and without repeats: long files more often, and all kinds of operators alike."""
    kinds: dict[str, list[str]] = {}
    for name in OperatorProvider():
        if name not in WITH_ARGUMENTS:
            kinds.setdefault(name.partition("_")[0], []).append(name)
    weights = [file.stat().st_size for file in files]
    seen = set[Place]()
    while True:
        [file] = rng.choices(files, weights)
        operator = rng.choice(kinds[rng.choice(sorted(kinds))])
        visitor = _Mutation(OperatorProvider()[operator]())
        visitor.walk(_tree(file))
        if visitor.count == 0:
            continue
        place = Place(file, operator, rng.randrange(visitor.count))
        if place not in seen and (code := mutated(place)) is not None:
            seen.add(place)
            yield place, code


@cache
def _tree(file: Path) -> Any:
    return get_ast(file.read_text(encoding="utf-8"))


def mutated(place: Place) -> str | None:
    """The source with the mutation; None if it is no Python, or changes nothing that is run."""
    source = place.file.read_text(encoding="utf-8")
    code: str = _Mutation(OperatorProvider()[place.operator](), place.number).walk(get_ast(source)).get_code()
    try:
        return None if _meaning(code) == _meaning(source) else code
    except SyntaxError:  # `*` between parameters is no operator
        return None


def _meaning(source: str) -> str:
    """The syntax tree without annotations, and without `frozen`, which only keeps programmers from mistakes."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node.returns = None
        elif isinstance(node, ast.arg):
            node.annotation = None
        elif isinstance(node, ast.AnnAssign):
            node.annotation = ast.Constant(None)
        elif isinstance(node, ast.ClassDef):
            node.keywords = [keyword for keyword in node.keywords if keyword.arg != "frozen"]
    return ast.dump(tree)


def judge(mutation: tuple[Place, str], *, is_wider: bool) -> str:
    """The test that catches the mutation; empty if none does."""
    place, code = mutation
    module = ".".join(place.file.relative_to(ROOT).with_suffix("").parts)
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        overlay = plant(module, code, Path(folder))
        try:
            tried = (failing(group, overlay) for group in groups(place.file, is_wider=is_wider))
            return next((caught for caught in tried if caught), "")
        except Unusable:
            return "the import of the tests"


def groups(file: Path, *, is_wider: bool) -> Iterator[Sequence[str]]:
    """Tests that may catch a mutation of this file: those of its name, those of its package, and (`is_wider`) more."""
    package = ROOT / "tests" / "unit" / file.relative_to(ROOT / "gracectl").parts[0]
    if named := [str(test.relative_to(ROOT)) for test in sorted(package.glob(f"test_*{file.stem}*.py"))]:
        yield named
    yield (str(package.relative_to(ROOT)),)
    if is_wider:
        yield ("tests/controllers",)


def main(arguments: Sequence[str]) -> int:
    """Print each survivor, and the score."""
    parser = argparse.ArgumentParser(prog="make mutants-sample ARGS=…", description=__doc__)
    parser.add_argument("packages", nargs="*", default=["policy", "eviction"], help="packages of gracectl")
    parser.add_argument("-n", dest="number", type=int, default=150, help="mutations")
    parser.add_argument("-j", dest="jobs", type=int, default=2, help="at a time")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--wider", action="store_true", help="then try tests/controllers, too")
    options = parser.parse_args(arguments)
    files = [file for package in options.packages for file in sorted((ROOT / "gracectl" / package).rglob("*.py"))]
    chosen = list(islice(sample(files, random.Random(options.seed)), options.number))
    survivors = 0
    warm([f"tests/unit/{package}" for package in options.packages])
    judged = spread(partial(judge, is_wider=options.wider), chosen, options.jobs)
    for (place, code), caught in zip(chosen, judged, strict=True):
        if not caught:
            survivors += 1
            before = place.file.read_text(encoding="utf-8")
            lines = difflib.unified_diff(before.splitlines(), code.splitlines(), n=0, lineterm="")
            change = "\n".join(line for line in lines if not line.startswith(("---", "+++")))
            print(f"{place.file.relative_to(ROOT)}: {place.operator}\n{change}", flush=True)
    count, total = len(chosen) - survivors, len(chosen)
    print(f"{count} of {total} mutations are caught ({count / total:.0%})")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
