"""Mutation tests of the maths: small faults, and a test must catch each. `make faults`
tries them all.

    python -m tests.faults                      # all of them
    python -m tests.faults --only fixed_point   # those with the text in place or tests

A fault names a function and an operator in it, and changes the operator's n-th use in
the syntax tree as the module is imported: no file is touched, and edits of the source
break no test. tests/test_faults.py checks that its place exists. Run `make test` first:
a test that fails anyway would count as one that catches.
"""

import argparse
import ast
import importlib.machinery
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["FAULTS", "Fault", "main", "mutated"]

ROOT = Path(__file__).parents[1]
VARIABLE = "UNROLL_FAULT"  # number of the fault to apply in this process
FAILED = 1  # exit code of pytest when a test failed
LIMIT = 900.0  # seconds. A fault may make a loop endless, and so is seen
BINARY = {
    "+": (ast.Add, ast.Sub),
    "-": (ast.Sub, ast.Add),
    "*": (ast.Mult, ast.Div),
    "/": (ast.Div, ast.Mult),
    "**": (ast.Pow, ast.Mult),
    "&": (ast.BitAnd, ast.BitOr),
}
COMPARED = {
    "<": (ast.Lt, ast.GtE),
    ">": (ast.Gt, ast.LtE),
    "<=": (ast.LtE, ast.Gt),
    ">=": (ast.GtE, ast.Lt),
}
RENAMED = {
    "maximum": "minimum",
    "minimum": "maximum",
    "sum": "mean",
    "mean": "sum",
    "max": "min",
}


class Fault(NamedTuple):
    """A change of one operator.

    Attributes:
      place: file and function, as in "unroll_jax/alternation.py:_descend". Dots lead to
        inner functions.
      operator: of `BINARY`, `COMPARED` or `RENAMED`. "stop_gradient" and "astype" drop
        the call, "where" swaps its branches, "where[1]" and "where[2]" keep one.
        "require()" drops a statement that calls a function of that name.
      number: use of the operator in the function, from 0.
      tests: test files under tests/ that catch the fault, separated by spaces.
    """

    place: str
    operator: str
    number: int
    tests: str


class _Change(ast.NodeTransformer):
    """Changes the n-th use of an operator."""

    def __init__(self, operator: str, number: int):
        self._operator, self._left = operator, number

    def _is_next(self, matches: bool) -> bool:
        self._left -= matches
        return matches and self._left == -1

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        old, new = BINARY.get(self._operator, (None, None))
        if old and new and self._is_next(isinstance(node.op, old)):
            node.op = new()
        return self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        old, new = COMPARED.get(self._operator, (None, None))
        if old and new and self._is_next(isinstance(node.ops[0], old)):
            node.ops[0] = new()
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        called = node.func
        name, _, branch = self._operator.partition("[")
        if isinstance(called, ast.Attribute) and self._is_next(called.attr == name):
            if branch:
                return self.visit(node.args[int(branch[0])])
            if self._operator == "stop_gradient":
                return self.visit(node.args[0])
            if self._operator == "astype":
                return self.visit(called.value)
            if self._operator == "where":
                node.args[1:3] = node.args[2:0:-1]
            else:
                called.attr = RENAMED[self._operator]
        return self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        called = node.value.func if isinstance(node.value, ast.Call) else None
        name = getattr(called, "attr", getattr(called, "id", None))
        if self._is_next(f"{name}()" == self._operator):
            return ast.Pass()
        return self.generic_visit(node)

    @property
    def is_done(self) -> bool:
        return self._left < 0


def mutated(source: str, fault: Fault) -> str:
    """Returns the source with the fault.

    Raises:
      LookupError: if the function or the use of the operator is not there.
    """
    tree: Any = ast.parse(source)
    function = tree
    for name in fault.place.partition(":")[2].split("."):
        nodes = (
            node
            for node in ast.walk(function)
            if isinstance(node, ast.FunctionDef) and node.name == name
        )
        if (function := next(nodes, None)) is None:
            raise LookupError(f"no function {name}")
    change = _Change(fault.operator, fault.number)
    function.body = [change.visit(node) for node in function.body]
    if not change.is_done:
        raise LookupError(f"no use {fault.number} of {fault.operator}")
    return ast.unparse(ast.fix_missing_locations(tree))


def _install(fault: Fault) -> None:
    """Gives the importer the mutated source of the fault's module, and no compiled
    one."""
    path = (ROOT / fault.place.partition(":")[0]).resolve()
    source, read = (
        mutated(path.read_text(encoding="utf-8"), fault),
        importlib.machinery.SourceFileLoader.get_data,
    )

    def get_data(loader: Any, wanted: str) -> bytes:
        if Path(wanted).name == path.name and Path(wanted).resolve() == path:
            return source.encode()
        if Path(wanted).name.startswith(f"{path.stem}.") and wanted.endswith(".pyc"):
            raise OSError("not compiled")
        return read(loader, wanted)

    sys.dont_write_bytecode = True
    importlib.machinery.SourceFileLoader.get_data = get_data


def _try(number: int, fault: Fault) -> str | None:
    """Runs the tests of a fault in a process with the fault. Returns the one that
    catches it, or None."""
    variables = {
        **os.environ,
        VARIABLE: str(number),
        "PYTHONPATH": str(ROOT),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    options = [
        "-x",
        "-q",
        "-m",
        "not slow",
        "-p",
        "tests.faults",
        "-p",
        "no:cacheprovider",
        "--tb=no",
    ]
    tests = [f"tests/{name}" for name in fault.tests.split()]
    command = [sys.executable, "-m", "pytest", *options, *tests]
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=variables,
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"a test that ran for {LIMIT:.0f} s"
    test = re.search(r"^(?:FAILED|ERROR) (\S.*?)(?: - .*)?$", done.stdout, re.MULTILINE)
    return test[1] if done.returncode == FAILED and test else None


def main(arguments: list[str] | None = None) -> int:
    """Tries the faults that were asked for and prints a line for each. Returns 1 if
    one is missed."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults")
    parser.add_argument(
        "--only",
        default="",
        metavar="TEXT",
        help="those with TEXT in their place or tests",
    )
    only = parser.parse_args(arguments).only
    chosen = [
        (number, fault)
        for number, fault in enumerate(FAULTS)
        if only in f"{fault.place} {fault.tests}"
    ]
    if not chosen:
        parser.error(f"--only {only!r} names no fault")
    caught = 0
    for number, fault in chosen:
        began = time.monotonic()
        by = _try(number, fault)
        caught += by is not None
        where = f"{fault.place} {fault.operator} {fault.number}"
        word = "MISSED" if by is None else "caught"
        print(
            f"{word} {time.monotonic() - began:4.0f} s  {where}  [{by or fault.tests}]",
            flush=True,
        )
    print(f"{caught} of {len(chosen)} caught")
    return 0 if caught == len(chosen) else 1


# A file, the tests that catch its faults, and below it for each fault the function, the
# operator and the number of its use.
ROWS = """
unroll_jax/energies/hopfield.py: energies/test_hopfield.py
    hopfield.energy - 0, hopfield.step + 0, hopfield.step * 0
unroll_jax/energies/feedforward.py: energies/test_feedforward.py
    feedforward.energy - 0, feedforward.step - 0, feedforward.step + 0
unroll_jax/energies/layer_norm.py: energies/test_layer_norm.py
    layer_norm.energy - 0, layer_norm.step + 0
unroll_jax/energies/lista.py: energies/test_lista.py
    lista.energy + 0, lista.step - 0, lista.step / 0
unroll_jax/energies/lista.py: models/test_lista.py
    lista_layer + 0
unroll_jax/energies/dust.py: energies/test_dust.py
    dust.step - 0, dust.step / 0
unroll_jax/energies/attention/sums.py: energies/attention/test_pairwise.py
    rectangle_energy sum 0
unroll_jax/energies/attention/sums.py: energies/attention/test_pairwise.py energies/attention/test_causal.py
    rectangle_sums - 0
unroll_jax/energies/attention/sums.py: energies/test_every_system.py
    combine - 0
unroll_jax/energies/attention/pairwise.py: energies/attention/test_pairwise.py
    _move - 0, _damp + 0
unroll_jax/energies/attention/causal.py: energies/attention/test_causal.py
    causal_attention.step - 0
unroll_jax/energies/equilibrium/opteq.py: energies/equilibrium/test_opteq.py
    _layer.energy - 0, _layer.step + 0
unroll_jax/energies/equilibrium/deep_opteq.py: energies/equilibrium/test_deep_opteq.py
    residual_energy.energy * 0
unroll_jax/alternation.py: test_alternation.py
    _descend - 0, alternating.smooth + 0
unroll_jax/spectral.py: test_spectral.py
    spectral_norm stop_gradient 0
unroll_jax/fixed_point/derivatives.py: fixed_point/test_gradients.py
    _differentiable - 0, _differentiable - 1
unroll_jax/fixed_point/rows.py: fixed_point/test_gradients.py fixed_point/test_loop.py
    norm * 0
unroll_jax/fixed_point/derivatives.py: fixed_point/test_loop.py fixed_point/test_every_pair.py
    _solve * 2
unroll_jax/fixed_point/factored.py: fixed_point/test_ends.py
    _newton - 0
unroll_jax/fixed_point/adjoints.py: fixed_point/test_gradients.py
    neumann.solve + 0
unroll_jax/fixed_point/loop.py: fixed_point/test_loop.py fixed_point/test_decisions.py
    _update < 0
unroll_jax/fixed_point/solvers.py: fixed_point/test_loop.py
    anderson.update - 0, damped.update - 0
unroll_jax/fixed_point/solvers.py: fixed_point/test_averaging.py
    averaged.average - 0
unroll_jax/constrained/layer_bounds.py: constrained/test_layer_bounds.py
    _quotient - 0, _bound * 0, _bound stop_gradient 0
unroll_jax/constrained/duals.py: constrained/test_lagrangian.py
    _ascent / 0
unroll_jax/constrained/constraint.py: constrained/test_ready_made.py
    _excess - 0
unroll_jax/constrained/ready_made.py: constrained/test_ready_made.py
    gap.value - 0
unroll_jax/constrained/controllers.py: constrained/test_controllers.py
    proportional_integral.move - 0
unroll_jax/constrained/lagrangian.py: constrained/test_lagrangian.py
    lagrangian + 0, _augmented_terms.term / 0, _relax * 0
train/core/step.py: train/test_state.py
    train_step + 0
# Of each kind of result that was once wrong without a message.
# the fields of a replaced step stay
unroll_jax/descent.py: test_conformance.py
    _replace update() 0
# an input of another shape broadcasts
unroll_jax/energies/tokens.py: energies/test_errors.py
    _check_input require() 1
# a traced number out of range counts
unroll_jax/energies/proximal/penalty.py: energies/proximal/test_operators.py
    nonnegative where[1] 0
# labels of 8 bits are compared with 300 classes
unroll_jax/certificates/margins.py: test_margins.py
    as_places astype 0
# rounding lifts a radius, and lowers a bound of norms
unroll_jax/certificates/margins.py: test_margins.py
    certified_radius - 1
unroll_jax/numerics.py: test_norm_bounds.py
    round_up + 0
# a vector of zeros is divided by its length; sizes near the ends of float32
unroll_jax/numerics.py: test_numerics.py test_spectral.py
    over where[2] 0, powers_of_two where[2] 0
# NaN is masked
unroll_jax/energies/fast_weights.py: energies/test_fast_weights.py
    read_chunks.join where[2] 0
unroll_jax/models/language/sampling.py: models/test_generation.py
    draw_tokens where[2] 0
# a mean over no sample
unroll_jax/constrained/constraint.py: constrained/test_every_function.py
    _means.mean where[2] 0
# a start that is returned counts as a solution
unroll_jax/fixed_point/reports.py: fixed_point/test_optimality.py
    report_solution <= 0
# values in units of the scaled violation
unroll_jax/constrained/group_report.py: constrained/test_layer_bounds.py
    judge_group * 2
"""
FAULTS = [
    Fault(f"{path}:{function}", operator, int(number), tests)
    for path, tests, uses in re.findall(r"^(\S+): (.+)\n    (.+)$", ROWS, re.MULTILINE)
    for function, operator, number in map(str.split, uses.split(", "))
]

if __name__ == "__main__":
    sys.exit(main())
elif VARIABLE in os.environ:
    _install(FAULTS[int(os.environ[VARIABLE])])
