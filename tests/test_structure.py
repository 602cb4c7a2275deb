"""The house: which floor may import which, and what is documented."""

import ast
import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import unroll_jax
import unroll_jax.train

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "unroll_jax"


def in_order(*floors):
    """Floors by file, from the names on each, ground first."""
    return {name: floor for floor, names in enumerate(floors) for name in names.split()}


# Ground first; a file may import from floors below. `descent` holds the types they all share.
FLOORS = in_order(
    "arguments summaries descent numerics",
    "arrays perturbations conjugate_gradients",
    "coordinates cross_entropy steps",
    "norm_bounds spectral",
    "energies constrained",
    "alternation proximal_gradient",
    "certificates unrolling fixed_point",
    "linen looped nnx",
    "models",
    "train",
    "benchmarks papers",
)
# The same inside of rooms. A file that is not named here, such as a new energy, is on the top floor.
TOP = 9
FLOORS_OF_ROOMS = {
    "constrained": in_order(
        "trees",
        "constraint controllers lagrangian layer_bounds points",
        "ready_made descent duals report samples",
        "layer_report transformation",
    ),
    "energies": in_order(
        "cosine examples safeguard tokens",
        "proximal",
        "attention equilibrium fast_weights feedforward hopfield layer_norm lista unrolled_layer",
        "dust transformer_parts",
        "transformer",
        "double_width",
    ),
    "energies.attention": in_order(
        "graphs fused least_squares rho_checks",
        "rho",
        "kernel_blocks sums",
        "pairs",
        "kernel",
        "kernel_choice",
        "pairwise",
        "causal heads",
    ),
    "energies.equilibrium": in_order(
        "convolution monotone unit_layer", "opteq_params", "opteq", "deep_opteq opteq_objective", "regularisers"
    ),
    "energies.proximal": in_order("penalty", "activations", "operators"),
    "fixed_point": in_order(
        "reports",
        "program",
        "sizes",
        "loop",
        "solvers",
        "adjoints",
        "derivatives factored",
        "equilibrium optimality",
        "monotone",
    ),
}
# The same of the application, by its files and folders, as in docs/architecture.md.
APPLICATION = ROOT / "train"
ROOMS_OF_APPLICATION = {
    8: ("__main__", "__init__"),
    7: ("main", "sweep", "predict", "generation", "exporting"),
    6: ("loading",),
    5: ("loop", "evaluate", "tasks", "report", "plan", "weights"),
    4: ("runs", "constraints"),
    3: ("step", "limits", "checkpoint", "metrics", "data", "cli"),
    2: ("task", "parts", "optimizers", "registry", "sharding", "system", "experiments"),
    1: ("config",),
}
FLOORS_OF_APPLICATION = {room: floor for floor, rooms in ROOMS_OF_APPLICATION.items() for room in rooms}
FILES = sorted(PACKAGE.rglob("*.py"))
WALKED = (module.name for module in pkgutil.walk_packages([str(PACKAGE)], "unroll_jax."))
MODULES = ["unroll_jax", *(name for name in WALKED if not name.startswith("unroll_jax.train"))]


def imports(path, root=ROOT):
    """Dotted names of the modules that a file imports, wherever in the file it does."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 or PACKAGE not in path.parents, f"{path}: relative import"
            folders = path.relative_to(root).parts[: -node.level] if node.level else ()
            module = ".".join([*folders, *([node.module] if node.module else [])])
            yield from (f"{module}.{alias.name}" for alias in node.names)


def theme(parts):
    """The room a dotted name lies in: `energies` for unroll_jax.energies.attention.rho, `train` for train.loop."""
    return parts[1] if parts[0] == "unroll_jax" and len(parts) > 1 else parts[0]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_floor_imports_only_from_floors_below(path):
    home = theme(path.relative_to(ROOT).with_suffix("").parts)
    if path == PACKAGE / "__init__.py":
        home = "models"  # the face of the library lies above all of it but the models, see the next test
    for name in imports(path):
        room = theme(name.split("."))
        if room == home or room not in FLOORS:
            assert not name.startswith("unroll_jax") or room == home, f"{name} is on no floor: add it to FLOORS"
            continue
        assert FLOORS[room] < FLOORS[home], f"{home} (floor {FLOORS[home]}) imports {name} (floor {FLOORS[room]})"


@pytest.mark.parametrize("room", FLOORS_OF_ROOMS)
def test_a_file_of_a_room_imports_only_from_floors_below(room):
    floors, package, folder = FLOORS_OF_ROOMS[room], f"unroll_jax.{room}.", PACKAGE / room.replace(".", "/")
    assert set(floors) <= {path.stem for path in folder.iterdir()}
    for path in set(folder.rglob("*.py")) - {folder / "__init__.py"}:
        home = path.relative_to(folder).with_suffix("").parts[0]
        for name in imports(path):
            other = name.removeprefix(package).split(".")[0]
            if name.startswith(package) and other != home:
                low, high = floors.get(other, TOP), floors.get(home, TOP)
                assert low < high, f"{path.relative_to(ROOT)} (floor {high}) imports {name} (floor {low})"


def climbs(path, root=ROOT):
    """The imports of a file of the application that do not lead to its own room or to a floor below."""
    floors, home = FLOORS_OF_APPLICATION, path.relative_to(root / "train").with_suffix("").parts[0]
    for name in imports(path, root):
        if name.split(".")[0] in ("papers", "benchmarks"):
            yield f"the application imports {name}"
        room = (*name.split("."), "__init__")[1]  # `train` itself is its __init__
        if name.split(".")[0] == "train" and room != home and not floors.get(room, TOP) < floors.get(home, -1):
            yield f"{home} (floor {floors.get(home)}) imports {name} (floor {floors.get(room)})"


@pytest.mark.parametrize("path", sorted(APPLICATION.rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_room_of_the_application_imports_only_from_floors_below(path):
    assert list(climbs(path)) == []


def test_every_room_of_the_application_has_a_floor_in_the_docs_too():
    rooms = {path.stem for path in APPLICATION.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert rooms == set(FLOORS_OF_APPLICATION)
    floor, shown = 0, {}
    for line in (ROOT / "docs" / "architecture.md").read_text().split("```")[1].splitlines():
        floor = int(line[0]) if line[:1].isdigit() else floor
        shown |= dict.fromkeys(re.findall(r"(?:^\d?\s+|;  )(\w+)(?:\.py|/)", line), floor)
    assert shown == FLOORS_OF_APPLICATION


@pytest.mark.parametrize(
    ("place", "line", "word"),
    [
        ("step.py", "def step():\n    from .loop import train_run", "train.loop"),
        ("tasks/video.py", "import train.main", "train.main"),
        ("config/run.py", "from ..cellar import wine", "train.cellar"),
        ("config/run.py", "import papers.yang2022", "papers.yang2022"),
        ("attic.py", "from .task import Task", "train.task"),
    ],
)
def test_an_import_of_the_application_that_climbs_is_found(place, line, word, tmp_path):
    path = tmp_path / "train" / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"from pathlib import Path\n{line}\n")
    (message,) = climbs(path, tmp_path)
    assert word in message


def test_no_imports_run_in_a_circle():
    packages = ("unroll_jax", "train", "benchmarks", "papers")
    paths = [path for package in packages for path in (ROOT / package).rglob("*.py")]
    modules = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in paths}

    def imported(path):
        """The modules that a file imports; of a package's name alone, the package."""
        for name in imports(path):
            yield name if name in modules else name.rpartition(".")[0]

    graph = {name: {other for other in imported(path) if other in modules} for name, path in modules.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


@pytest.mark.parametrize("name", unroll_jax.DESCENTS)
def test_a_system_its_example_and_its_condition_stand_in_one_file(name):
    factory, example, condition, _ = unroll_jax.DESCENTS[name]
    assert {function.__module__ for function in (factory, example, condition) if function} == {factory.__module__}


@pytest.mark.parametrize(
    ("statement", "unwanted"),
    [
        ("import unroll_jax", {"jax", "numpy", "unroll_jax.energies"}),
        ("from unroll_jax import *", {"flax", "jaxopt", "chex", "unroll_jax.train", "unroll_jax.models", "matplotlib"}),
        ("import unroll_jax.train", {"jax", "numpy", "unroll_jax.train.main"}),
    ],
)
def test_an_import_imports_only_what_is_used(statement, unwanted):
    code = f"import sys\n{statement}\nprint(sorted({unwanted} & set(sys.modules)))"
    process = subprocess.run([sys.executable, "-W", "error", "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (process.returncode, process.stdout.strip(), process.stderr) == (0, "[]", "")


@pytest.mark.parametrize("name", MODULES)
def test_everything_public_is_documented_and_listed(name):
    module = importlib.import_module(name)
    assert module.__doc__, f"{name} has no docstring"
    if name != "unroll_jax":  # lazy_loader sorts this one
        assert module.__all__ == sorted(module.__all__, key=lambda n: (not n.isupper(), n[0].islower(), n)), name
    for public in module.__all__:
        if inspect.isfunction(value := getattr(module, public)) or inspect.isclass(value):
            assert inspect.getdoc(value), f"{name}.{public} has no docstring"


@pytest.mark.parametrize("package", [unroll_jax, unroll_jax.train])
def test_dir_of_a_package_lists_its_public_names_alone(package):
    assert dir(package) == sorted(package.__all__)


def test_alternating_is_the_function_after_any_import():
    code = "import unroll_jax.alternation; from unroll_jax import alternating; assert callable(alternating)"
    subprocess.run([sys.executable, "-W", "error", "-c", code], cwd=ROOT, check=True)


def test_type_checkers_of_users_read_the_annotations():
    assert (PACKAGE / "py.typed").exists()
