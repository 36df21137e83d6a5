"""Methods declare their state and say little more: its share of the lines of `methods/`."""

from __future__ import annotations

import ast
import re
from pathlib import Path

METHODS = Path(__file__).parents[1] / "src" / "bayestta" / "methods"
MOVING = {
    *("declare", "reset", "state", "load", "merge", "merge_state", "check_state"),
    *("to_columns", "from_columns", "_first_moments", "_check"),  # which serve the above alone
    *("buffer", "snapshot", "header"),
}
LIMIT = 0.10


def state_lines(tree: ast.Module) -> dict[str, set[int]]:
    """The lines of functions that declare or move state, of declarations elsewhere, and of
    annotations that say the type of a piece of state once more."""
    found: dict[str, set[int]] = {}
    declared = set(re.findall(r'add_state\("(\w+)"', ast.unparse(tree).replace("'", '"')))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name in MOVING:
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            found[f"{node.name}, line {first}"] = set(range(first, node.end_lineno + 1))
        elif (
            isinstance(node, ast.AnnAssign)
            and node.value is None
            and ast.unparse(node.target) in declared
        ):
            found.setdefault("annotations", set()).add(node.lineno)
        elif isinstance(node, ast.Expr | ast.Assign) and "self.add_state(" in ast.unparse(node):
            lines = set(range(node.lineno, node.end_lineno + 1))
            found.setdefault("add_state elsewhere", set()).update(lines)
    return found


def test_state_takes_less_than_a_tenth_of_the_lines():
    total, state, largest = 0, 0, []
    for path in sorted(METHODS.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        total += len(text.splitlines())
        found = state_lines(ast.parse(text))
        state += len(set().union(*found.values()))
        largest += [(len(n), f"{path.relative_to(METHODS)} {key}") for key, n in found.items()]
    largest = sorted(largest, reverse=True)[:12]
    print(f"{state} of {total} lines ({100 * state / total:.1f} %) declare or move state:")
    print("\n".join(f"{n:4d}  {name}" for n, name in largest))
    assert state / total < LIMIT, largest
