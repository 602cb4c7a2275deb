"""`python -m benchmarks [NAME ...]`: runs benchmarks, prints their tables, writes runs/benchmarks/NAME.json."""

import importlib
import json
import sys
from pathlib import Path

BENCHMARKS = {
    "constrained_step": "what descent constraints cost a training step",
    "compile_time": "whether compile time grows with depth",
    "attention_energy": "what an attention energy costs as sequences grow",
    "transformer_forward": "what a transformer with its energies costs, against PyTorch",
    "encoder_throughput": "how many tokens a second an encoder takes, against that of transformers",
    "faults": "what signals, disks and damage cost runs, preparations, evaluations and searches",
    "gradients": "what gradients through equilibria cost, against other libraries and unrolling",
    "weak_scaling": "what 8 to 512 devices say to each other, and what that costs",
}


def main(names: list[str]) -> int:
    """Runs the named benchmarks, all of them if none is named."""
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        listed = "; ".join(f"{name} ({question})" for name, question in BENCHMARKS.items())
        sys.stderr.write(f"error: unknown benchmark {unknown[0]!r}; choose from {listed}\n")
        return 2
    folder = Path("runs/benchmarks")
    folder.mkdir(parents=True, exist_ok=True)
    for name in names or BENCHMARKS:
        print(f"== {name}: {BENCHMARKS[name]}", flush=True)
        figures = importlib.import_module(f"benchmarks.{name}").main()
        (folder / f"{name}.json").write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
