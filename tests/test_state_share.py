"""Methods declare their state and say little more: its share of the lines of `methods/`."""

from __future__ import annotations

import ast
from pathlib import Path

METHODS = Path(__file__).parents[1] / "src" / "bayestta" / "methods"
MOVING = {"declare", "reset", "state", "load", "merge", "merge_state"}
LIMIT = 0.10


def lines_of_state(tree: ast.Module) -> dict[str, int]:
    """Lines of every method of a class that declares or moves state, decorators included."""
    found = {}
    for owner in ast.walk(tree):
        if not isinstance(owner, ast.ClassDef):
            continue
        for item in owner.body:
            if isinstance(item, ast.FunctionDef) and item.name in MOVING:
                first = min([item.lineno, *(d.lineno for d in item.decorator_list)])
                found[f"{owner.name}.{item.name}"] = item.end_lineno - first + 1
    return found


def test_state_takes_less_than_a_tenth_of_the_lines():
    total, state = 0, {}
    for path in sorted(METHODS.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        total += len(text.splitlines())
        found = lines_of_state(ast.parse(text))
        state |= {f"{path.relative_to(METHODS)} {name}": n for name, n in found.items()}
    share = sum(state.values()) / total
    largest = sorted(state.items(), key=lambda item: -item[1])
    print(f"{sum(state.values())} of {total} lines ({100 * share:.1f} %) declare or move state:")
    print("\n".join(f"{n:4d}  {name}" for name, n in largest))
    assert share < LIMIT, largest[:5]
