"""Two processes, one killed: `python -m benchmarks.faults.pair VICTIM PHASE SIGNAL SECONDS FILE ARGUMENTS`.

They are started and watched as `unroll-jax launch` does it: the one that is left is ended by the launcher.
"""

import sys

from unroll_jax.train.system.machine import free_port, launch

__all__ = ["PROCESSES"]

PROCESSES = 2


def main(victim: int, kill: list[str], arguments: list[str]) -> int:
    """Runs `unroll-jax ARGUMENTS` in both; ``kill`` is what `benchmarks.faults.process` takes before them."""
    shared = ["--coordinator", f"127.0.0.1:{free_port()}", "--processes", str(PROCESSES)]
    commands = []
    for number in range(PROCESSES):
        module = ["benchmarks.faults.process", *kill] if number == victim else ["unroll_jax.train"]
        commands.append([sys.executable, "-m", *module, *shared, "--process", str(number), *arguments])
    return launch(commands)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:6], sys.argv[6:]))
