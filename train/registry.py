"""The registry: options, module and experiments of every task. Modules are named, and
imported when they are used."""

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

from .config.errors import UserError
from .config.run import Experiment, RunConfig, SourceConfig
from .tasks.certified import options as certified
from .tasks.image_sets import options as image_sets
from .tasks.images import experiments as image_experiments
from .tasks.images import options as images
from .tasks.language import options as language
from .tasks.own import options as own
from .tasks.sparse_coding import options as sparse_coding
from .tasks.text import options as text
from .tasks.video import options as video

PASS_IT = "pass the task that was trained"
FROM_PYTHON = (
    "from Python: fit(task, out=FOLDER), load(FOLDER, task=task) or export(FOLDER,"
    " task=task)"
)


class Functions(NamedTuple):
    """A task in code: its module within train/, with `open_task` and `rebuild`, and
    Python that predicts, for model cards."""

    task: str
    predict: str


class Registered(NamedTuple):
    """A row: the class of a task's options, and its functions, or None for your own,
    passed from Python."""

    config: type[RunConfig]
    functions: Functions | None


_VIDEO = Functions(
    task="tasks.video.task",
    predict=(
        'frames = model.predict("clip.mp4")  # or a picture, or uint8 arrays: (frames,'
        " 160, 160) without noise"
    ),
)
_TEXT = Functions(
    task="tasks.text.task",
    predict=(
        '(prediction,) = model.predict(["a text"])  # of pairs, with'
        ' seconds=["another"]\nprediction.label, prediction.probabilities[-1]  # by'
        " layer, the last one here\n# or `unroll-jax predict FOLDER --text TEXT`"
    ),
)
_IMAGES = Functions(
    task="tasks.images.task",
    predict=(
        'prediction = model.predict("picture.png")  # or uint8 arrays, one or a list\n'
        "prediction.label, prediction.probabilities"
    ),
)
_CERTIFIED = Functions(
    task="tasks.certified.task",
    predict=(
        'answer = model.predict("picture.png")  # or uint8 arrays, one or a'
        " list\nanswer.label, answer.probabilities, answer.radius"
    ),
)
_SPARSE_CODING = Functions(
    task="tasks.sparse_coding.task",
    predict=(
        'coded = model.predict("picture.png")  # or uint8 arrays, one or a'
        " list\ncoded.code, coded.image"
    ),
)
_IMAGE_SETS = Functions(
    task="tasks.image_sets.task",
    predict=(
        'images = model.predict(["a.png", "b.png"])  # or uint8 arrays; a set without'
        " its noise, uint8"
    ),
)
_LANGUAGE = Functions(
    task="tasks.language.task",
    predict=(
        '(answer,) = model.predict(["a prompt"], answers=["an'
        " answer\"])\nanswer.log_probabilities, answer.losses  # of the answer's"
        " tokens; of every layer that is read\n# to generate answers, `unroll-jax"
        " generate FOLDER --prompts FILE`"
    ),
)
_SCENES = _IMAGES._replace(
    predict=(
        'classes = model.predict("scene.png")  # or uint8 arrays, one or a list; the'
        " class of each pixel"
    ),
)

TASKS: dict[str, Registered] = {
    "video": Registered(video.VideoConfig, _VIDEO),
    "video-dust": Registered(video.VideoDustConfig, _VIDEO),
    "video-vit": Registered(video.VideoViTConfig, _VIDEO),
    "image-sets": Registered(image_sets.ImageSetConfig, _IMAGE_SETS),
    "sparse-coding": Registered(sparse_coding.SparseCodingConfig, _SPARSE_CODING),
    "text-encoder": Registered(text.TextEncoderConfig, _TEXT),
    "text-ut": Registered(text.TextUnrolledConfig, _TEXT),
    "image-opteq": Registered(images.ImageOptEqConfig, _IMAGES),
    "image-mon": Registered(images.ImageMonConfig, _IMAGES),
    "image-ode": Registered(images.ImageOdeConfig, _IMAGES),
    "image-dnn": Registered(images.ImageFeedForwardConfig, _IMAGES),
    "certified": Registered(certified.CertifiedConfig, _CERTIFIED),
    "segment-opteq": Registered(images.SceneOptEqConfig, _SCENES),
    "segment-fcn": Registered(images.SceneFcnConfig, _SCENES),
    "language": Registered(language.LanguageConfig, _LANGUAGE),
    "own": Registered(own.OwnConfig, None),
}


# By the class of their options: the modules within train/ that prepare data.
MODULES: dict[type[SourceConfig], str] = {
    video.DataConfig: "tasks.video.data",
    images.ImageConfig: "tasks.images.data",
    sparse_coding.CodeConfig: "tasks.sparse_coding.data",
    image_sets.SetConfig: "tasks.image_sets.data",
    images.SceneConfig: "tasks.images.data",
    text.TextConfig: "tasks.text.data",
    language.InstructionConfig: "tasks.language.instructions",
}


EXPERIMENTS: dict[str, Experiment] = {
    **image_sets.EXPERIMENTS,
    **video.EXPERIMENTS,
    **image_experiments.EXPERIMENTS,
    **certified.EXPERIMENTS,
    **sparse_coding.EXPERIMENTS,
    **text.EXPERIMENTS,
    **language.EXPERIMENTS,
}


def functions_of(config: RunConfig) -> Functions:
    """The functions of a configuration's task."""
    for row in TASKS.values():
        if row.functions is not None and isinstance(config, row.config):
            return row.functions
    raise UserError(
        "a task of your own is known to Python alone; pass the task itself"
        f" {FROM_PYTHON}"
    )


def imported(module: str) -> Any:
    """The module within train/."""
    return importlib.import_module(f".{module}", __package__)


def open_task(config: RunConfig, log: Callable[[str], None]) -> Any:
    """Returns the task of a configuration on its data, prepared on first use. Other
    tasks are not imported."""
    return imported(functions_of(config).task).open_task(config, log)


def prepare_data(data: SourceConfig, log: Callable[[str], None]) -> None:
    """Prepares the data of a configuration, unless that is done: on no device, and
    without the task."""
    imported(MODULES[type(data)]).prepare(data, log=log)


def rebuild(config: RunConfig, spec: dict[str, Any]) -> Any:
    """Returns the task that its ``spec`` describes, without its data, to predict with
    given parameters."""
    return imported(functions_of(config).task).rebuild(config, spec)
