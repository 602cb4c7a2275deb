"""Search over the numbers of an experiment: its command, which imports little before the options are read."""

import dataclasses

from ..config.commands import SearchArguments, over_hint
from ..experiments import EXPERIMENTS
from ..options import experiment_named, from_file
from ..parsing import given, parse
from ..system.machine import keep_programs


def command(arguments: list[str]) -> None:
    """`unroll-jax search EXPERIMENT [--over.NAME RANGE ...]`."""
    name = experiment_named("search", arguments)
    if name is None:
        return
    usual, program = dataclasses.replace(EXPERIMENTS[name].config, out=None), f"unroll-jax search {name}"
    whole = SearchArguments(config=from_file(arguments, usual))
    parsed = parse(SearchArguments[type(usual)], arguments[1:], program, whole, hint=over_hint(arguments))
    chosen = given(arguments, "--constraints.warmup-steps")
    config = parsed.config.fitting(usual, chosen=chosen, log=print)
    over = {option.replace("_", "-"): text for option, text in vars(parsed.over).items()}
    from .space import read_search

    read_search(config, over, sampler=parsed.sampler, trials=parsed.trials)
    from .trials import search  # which imports JAX and Optuna: what was refused so far did not wait for these

    keep_programs()
    search(config, experiment=name, over=over, sampler=parsed.sampler, trials=parsed.trials)
