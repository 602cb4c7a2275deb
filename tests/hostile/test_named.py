"""Every option that the application names is one of its own."""

import ast
from pathlib import Path

import pytest

from tests.hostile.named import OPTION, options_of, strangers
from unroll_jax import train
from unroll_jax.train.experiments import EXPERIMENTS
from unroll_jax.train.main import MEMBERSHIP

COMMANDS = ("evaluate", "predict", "generate", "export", "report", "prepare", "launch")
# Of processes, of messages with a placeholder, and of other programs.
OTHERS = {
    *MEMBERSHIP,
    "--all",  # of list
    "--help",
    "--version",
    "--option",
    "--over",
    "--data",
    "--network",
    "--logdir",
    "--no-deps",
    "--local-dir",
}
OTHERS |= {"--xla_force_host_platform_device_count", "--xla_cpu_enable_concurrency_optimized_scheduler"}


def messages(module):
    """The strings of a module but its docstrings."""
    told = {id(node.value) for node in ast.walk(module) if isinstance(node, ast.Expr)}
    for node in ast.walk(module):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in told:
            yield node.value


def test_every_option_that_a_message_names_is_one_of_some_command():
    known = {option.removeprefix("--") for option in OTHERS} | options_of("sweep", "video-ut")
    known = known.union(*(options_of(command, "") for command in COMMANDS))
    for experiment in {row.config.task: name for name, row in EXPERIMENTS.items()}.values():
        known |= options_of("run", experiment)
    places = {
        (path.name, option)
        for path in Path(train.__file__).parent.rglob("*.py")
        for text in messages(ast.parse(path.read_text(encoding="utf-8")))
        for option in OPTION.findall(text)
    }
    assert {place for place in places if place[1] not in known and not place[1].startswith("over.")} == set()


@pytest.mark.parametrize(
    ("line", "message", "expected"),
    [
        ("run image-opteq", "lower --primal.learning-rate", {"primal.learning-rate"}),
        ("run demo", "lower --primal.learning-rate", set()),
        ("prepare video", "needs --data.root", {"data.root"}),
        ("prepare video", "needs --from", set()),
        ("run demo --stesp 3", "unknown --stesp; see `unroll-jax run demo --helps`", set()),
    ],
)
def test_what_a_command_does_not_have_is_found(line, message, expected):
    assert strangers(line, message) == expected
