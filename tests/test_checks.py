"""The share of the library's code that checks arguments."""

import ast
import io
import tokenize
from pathlib import Path

LIBRARY = Path(__file__).parents[1] / "unroll_jax"
MOST = 0.11  # the aim is .06
LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
CHECKS = {node.name for node in ast.parse((LIBRARY / "arguments.py").read_text()).body if hasattr(node, "name")}


def lines_of(nodes):
    return {line for node in nodes for line in range(node.lineno, node.end_lineno + 1)}


def code_lines(source, nodes):
    tokens = [token for token in tokenize.generate_tokens(io.StringIO(source).readline) if token.type not in LAYOUT]
    lines = {line for token in tokens for line in range(token.start[0], token.end[0] + 1)}
    texts = (node.value for node in nodes if isinstance(node, ast.Expr))
    return lines - lines_of(text for text in texts if isinstance(text, ast.Constant) and isinstance(text.value, str))


def is_check(node):
    match node:
        case ast.FunctionDef(name=name):
            return name.lstrip("_").startswith("check")
        case ast.If(body=body):
            return all(isinstance(statement, ast.Raise) for statement in body)
        case ast.Expr(value=ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name))):
            return name in CHECKS or name.lstrip("_").startswith("check")
        case ast.Call(func=ast.Name(id="checked")) | ast.Raise():
            return True
    return False


def test_checks_are_a_small_share_of_the_code():
    checks, total = {}, 0
    for path in sorted(LIBRARY.rglob("*.py")):
        if path.relative_to(LIBRARY).parts[0] != "train":  # a link
            nodes = list(ast.walk(ast.parse(path.read_text())))
            code, checked = code_lines(path.read_text(), nodes), lines_of(filter(is_check, nodes))
            checks[str(path)] = len(code if path.name == "arguments.py" else code & checked)
            total += len(code)
    assert sum(checks.values()) <= MOST * total, sorted(checks.items(), key=lambda item: -item[1])[:40]
