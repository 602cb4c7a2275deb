"""Meshes, processes and folders that cannot be."""

from pathlib import Path

from tests.hostile.command import Command

FORM = "--mesh must be axes of data, fsdp, tensor"
TOGETHER = "--coordinator, --processes and --process go together"


def file(folder: Path) -> None:
    (folder / "file").write_text("mine")


COMMANDS = [
    *(
        Command(f"run video-ut --mesh {mesh}", (FORM, f"got '{mesh}'"))
        for mesh in (
            "data=0",
            "data=-1",
            "data=3,data=3",
            "data",
            "data=",
            "=2",
            "foo=2",
            "2",
            "data=two",
            "data=1.5",
            "data=2;fsdp=2",
            "data=2,",
            "DATA=2",
            "data=¹",
        )
    ),
    Command("run video-ut --mesh data=4096", ("--mesh data=4096 asks for 4096 devices", "XLA_FLAGS")),
    Command("run video-ut --mesh data=999999999999999999999", ("asks for 999999999999999999999 devices",)),
    Command("run image-opteq --mesh fsdp=4096", ("asks for 4096 devices",)),
    Command("run text-ut --mesh tensor=4096", ("asks for 4096 devices",)),
    Command("plan video-ut --mesh nowhere=2", (FORM,)),
    Command("sweep video-ut --over.seed 0 --mesh data=4096", ("asks for 4096 devices",)),
    *(
        Command(f"{line} --out=~nobody0/e", ("--out=~nobody0/e is in nobody's home folder; write the path out",))
        for line in (
            "run video-ut",
            "plan video-ut",
            "sweep video-ut --over.seed 0",
            "export run",
            "report run",
        )
    ),
    Command("evaluate nowhere --mesh data=0", ("nowhere is no run folder",)),
    Command("launch", ("launch needs a command behind --",)),
    Command("launch --processes 2", ("launch needs a command behind --",)),
    Command("launch --processes 2 --", ("launch needs a command behind --",)),
    Command("launch --processes 2 run video-ut", ("launch needs a command behind --",)),
    Command("launch --processes 0 -- run video-ut", ("--processes must be from 1 to 256, got 0",)),
    Command("launch --processes -1 -- run video-ut", ("--processes must be from 1 to 256, got -1",)),
    Command("launch --processes 100000 -- run video-ut", ("--processes must be from 1 to 256, got 100000",)),
    Command("launch --processes two -- run video-ut", ("--processes must be a whole number",)),
    Command("launch --processes 2 --processes 3 -- run video-ut", ("--processes is given more than once",)),
    Command("launch --proceses 2 -- run video-ut", ("(did you mean --processes?)",)),
    Command("launch --processes 2 -- fly", ("fly runs in one process; several are for run, plan, evaluate",)),
    Command("launch --processes 2 -- list", ("list runs in one process",)),
    Command("launch --processes 2 -- launch -- run video-ut", ("launch runs in one process",)),
    Command("launch --processes 2 -- --processes 2 run video-ut", ("launch needs a command behind --",)),
    Command("launch --processes 2 -- run video-ut --processes 2", ("launch gives each process its --processes",)),
    Command("launch --processes 2 -- run video-ut --coordinator=a:1", ("launch gives each process its --coordinator",)),
    Command("--processes 2 run video-ut", (TOGETHER,)),
    Command("--coordinator localhost:1 run video-ut", (TOGETHER,)),
    Command("--coordinator localhost:1 --processes 2 run video-ut", (TOGETHER,)),
    *(
        Command(
            f"--coordinator {place} --processes 2 --process 0 run video-ut", ("HOST:PORT, with a port from 1 to 65535",)
        )
        for place in (
            "localhost",
            "localhost:",
            ":1",
            "localhost:0",
            "localhost:99999",
            "localhost:http",
            "localhost:-1",
        )
    ),
    Command("--coordinator localhost:1 --processes 2 --process 2 run video-ut", ("--process must be in", "got 2 of 2")),
    Command(
        "--coordinator localhost:1 --processes 2 --process -1 run video-ut", ("--process must be in", "got -1 of 2")
    ),
    Command("--coordinator localhost:1 --processes 0 --process 0 run video-ut", ("got 0 of 0",)),
    Command("--coordinator localhost:1 --processes a --process 0 run video-ut", ("--processes must be",)),
    Command("--cluster slurmm run video-ut", ("--cluster must be one of auto, slurm",)),
    Command("--cluster auto --processes 2 run video-ut", ("--cluster finds the processes by itself",)),
    Command("--cluster auto report runs/x", ("report runs in one process",)),
    Command("--steps 3 run video-ut", ("Unrecognized options: --steps",)),
    Command("--processes", ("no command given",)),
    # Where nothing can be written.
    *(
        Command(f"{command} --out {out}", (f"--out {out}", "no folder"), file)
        for command in ("run video-ut", "sweep video-ut --over.seed 0", "report nowhere")
        for out in ("file", "file/run")
    ),
    Command("run video-ut --out /dev/null", ("cannot write to --out /dev/null: it is no folder; pass another",)),
    Command("run video-ut --out /dev/null/run", ("cannot write to --out /dev/null/run: /dev/null is no folder",)),
    Command("export nowhere --out file", ("cannot write to --out file: it is no folder",), file),
    Command("plan video-ut --out file", ("cannot write to --out file: it is no folder",), file),
]
