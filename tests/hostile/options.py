"""Options, commands, meshes and places that no command can have."""

from pathlib import Path

from tests.hostile.command import Command


def file(folder: Path) -> None:
    (folder / "file").write_text("mine")


# By experiment: options, and bad values of them.
VALUES = {
    "video-ut": (
        """
steps: 99999999999999999999 | 0 | 1e3 | 1,000 | ten | None; batch-size: 100000000; validate-every: 99999999999 | 0;
seed: -1 | 4294967296; accumulate: 4294967296 | 3; train-gamma: nan | -0.1 | 1e300 | 15% | 0;
test-gammas: 0 inf | 0.1 -1 | 0,0.1,0.2; test-disturbances: blur | rain=1 | blur=0 | dropped=1.5 | blur=1 blur=1.0;
method: ermm; remat: all; model.num-layers: 100000 | 0; model.rank: 1000000; model.dtype: float16;
primal.learning-rate: 0 | 1e-300; primal.warmup-share: 1.0; primal.clip-norm: -1; dual.optimizer: adamw;
dual.learning-rate: 0; dual.proportional-gain: -1; dual.cap: 0; dual.every: 99999999999 | epochs;
dual.start: nan | -1 | 1 1; constraints.alpha: 0 | 1 | nan | 0.1 0.2 | a b; constraints.reference: 0 | inf | none;
constraints.resilience: 0; constraints.margin: -0.1 | 1; constraints.first-margin: -0.1 | 1;
constraints.tolerance: -0.01; constraints.warmup-steps: 99999999999999999999 | 1500; data.source: photo | digits;
data.root: x; mesh: data=0 | data=3,data=3 | data | =2 | foo=2 | data=1.5 | data=4096; out: /dev/null | /dev/null/run
"""
    ),
    "text-ut": (
        "max-length: 10000000 | 2; data.source: novels; data.label-column: x;"
        " data.validation-share: nan | 1"
    ),
    "text-encoder": "model.hidden-dim: 10000000; model.num-heads: 100000 | 0 | 5",
    "image-opteq": (
        """
epochs: 99999999; network.widths: 16 9999999 | 16 0; network.tol: nan; network.stem: 4; network.skip: 1.5; augment:
"""
    ),
    "segment-fcn": "data.reduction: 99999999",
    "sft-tiny": (
        "model.lora-rank: 0 | 2; model.num-heads: 3; model.num-key-value-heads: 3;"
        " constraints.form: ratio"
    ),
    "sparse-coding": (
        "model.start: -0.1; data.sparsity: 0; test-layer-noises: 0.1 0.1;"
        " constraints.alpha: 0.1 0.2"
    ),
}
# Lines, and what their error names.
LINES = {
    "fly": "unknown command 'fly'",
    "eval runs/x": "mean evaluate?",
    "run": "no experiment given",
    "sweep 视频": "'视频'",
    "run --steps 3 demo": "`run demo --steps ...`",
    "run video-ut --stesp 3": "mean --steps?",
    "run image-opteq --primal.learning-rate 1": "mean --optimizer.learning-rate?",
    "run video-ut --": "--",
    "run video-ut --steps": "--steps",
    "run video-ut --batch-size=3 --batch_size=4": "--batch-size",
    "run video-ut --constraints.normalise --constraints.no-normalise": (
        "--constraints.normalise"
    ),
    "run video-ut --data.root=": "--data.root",
    "run video-ut --constraints.normalise True": "True",
    "run video-ut --data.source video --data.root no": "--data.root no",
    "run text-ut --data.source table --data.root file --data.label-column text": (
        "must differ"
    ),
    "run video-ut --config /dev/zero": "/dev/zero is not a regular file",
    "plan video-ut --mesh nowhere=2": "--mesh",
    "run runs/x": "there is no run folder runs/x",
    "sweep runs/x --over.seed 0": "not a folder",
    "prepare": "unroll-jax prepare",
    "prepare cifar10 --from nowhere": "cifar-10-binary.tar.gz",
    "prepare video": "--from",
    "prepare video --from nowhere": "--from nowhere",
    "prepare photos --from x": "--from",
    "prepare photos --validation-share 0.2": "--validation-share 0.2",
    "prepare digits --validation-share 0": "--validation-share",
    "predict nowhere --text a --file b": "--file",
    "generate nowhere": "--prompts",
    "generate nowhere --prompts nothing": "--prompts nothing",
    "evaluate nowhere --mesh data=0": "nowhere",
    "--processes 2 export runs/x": "export runs in one process",
    "--processes 2 run video-ut": "--coordinator, --processes and --process",
    "--coordinator localhost:1 --processes 2 --process 2 run video-ut": "--process",
    "--coordinator localhost:1 --processes a --process 0 run video-ut": "--processes",
    "--coordinator localhost --processes 2 --process 0 run video-ut": "--coordinator",
    "--cluster slurmm run video-ut": "--cluster",
    "--cluster auto --processes 2 run video-ut": "--cluster",
    "--processes": "no command given",
    "run video-ut --out=~nobody0/e": "~nobody0/e",
}
# Names that would steer a terminal, or that UTF-8 lacks, at the end of lines.
STEERING = ("v\x1b[31m", "v\x9b31m", "v\u202eabc", "v\udcff")
NAMED = (
    "",
    "run ",
    "evaluate ",
    "run video-ut --",
    "run video-ut --out ",
    "prepare video --from ",
)
COMMANDS = [
    *(
        Command(f"run {experiment} --{option} {value}".strip(), (f"--{option}",))
        for experiment, table in VALUES.items()
        for option, _, values in (
            entry.partition(":") for entry in " ".join(table.split()).split("; ")
        )
        for value in map(str.strip, values.split("|"))
    ),
    *(Command(line, (named,)) for line, named in LINES.items()),
    Command("--help", ("prepare SOURCE",), code=0),
    Command("run video-ut --help", ("--constraints.alpha",), code=0),
    *(
        Command(f"{line}{name}", (ascii(name)[1:-1],))
        for line in NAMED
        for name in STEERING
    ),
    *(
        Command(f"{line} --out {out}", (f"--out {out}",), file)
        for line in (
            "run video-ut",
            "sweep video-ut --over.seed 0",
            "export nowhere",
            "report nowhere",
        )
        for out in ("file", "file/run")
    ),
]
