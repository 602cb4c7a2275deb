"""Counts the library's code lines, and those that check arguments: ``python -m tests.count_checks``."""

import ast
import io
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

LIBRARY = Path(__file__).parents[1] / "unroll_jax"
MODULE_OF_CHECKS = "arguments.py"
LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def code_lines(source: str) -> set[int]:
    """Numbers of the lines that hold code: neither blank, nor comment, nor docstring."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in LAYOUT:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return lines


def check_lines(source: str, checks: frozenset[str] = frozenset()) -> set[int]:
    """Numbers of the lines of checks: ``@typed``, conditions that raise, check functions and the calls of them."""
    lines: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef):
            for decorator in node.decorator_list:
                if isinstance(decorator, ast.Call) and getattr(decorator.func, "id", "") == "checked":
                    lines.update(range(decorator.lineno, (decorator.end_lineno or 0) + 1))
        if _is_check(node, checks):
            lines.update(range(node.lineno, node.end_lineno + 1))  # pyright: ignore
    return lines & code_lines(source)


def count(library: Path = LIBRARY) -> tuple[Counter[str], Counter[str]]:
    """Code lines and check lines of each file of the library, by path; the application's link is left aside."""
    code, checks = Counter[str](), Counter[str]()
    named = frozenset(_functions((library / MODULE_OF_CHECKS).read_text()))
    for path in sorted(library.rglob("*.py")):
        name = path.relative_to(library).as_posix()
        if not name.startswith("train/"):
            source = path.read_text()
            code[name] = len(code_lines(source))
            checks[name] = code[name] if name == MODULE_OF_CHECKS else len(check_lines(source, named))
    return code, checks


def _functions(source: str) -> Iterator[str]:
    return (node.name for node in ast.parse(source).body if isinstance(node, ast.FunctionDef))


def _is_check(node: ast.AST, checks: frozenset[str]) -> bool:
    if isinstance(node, ast.FunctionDef):
        return node.name.lstrip("_").startswith("check")
    if isinstance(node, ast.If):
        return all(isinstance(statement, ast.Raise) for statement in node.body)
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        function = node.value.func
        name = function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")
        return name in checks or name.lstrip("_").startswith("check")
    return isinstance(node, ast.Raise)


def main() -> None:
    """Prints the files with most check lines, and the share of checks in the library's code."""
    code, checks = count()
    for name, lines in checks.most_common(int(sys.argv[1]) if len(sys.argv) > 1 else 0):
        print(f"{lines:5} of {code[name]:4}  {name}")
    print(f"{checks.total()} of {code.total()} code lines are checks: {checks.total() / code.total():.1%}")


if __name__ == "__main__":
    main()
