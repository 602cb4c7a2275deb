"""Options and experiments of certified classification."""

import dataclasses
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from ...config.errors import OptionError, option_text
from ...config.options import (
    Count,
    Depth,
    Levels,
    NonNegative,
    Positive,
    Width,
    options,
)
from ...config.run import Experiment, OptimizerConfig
from ..images.experiments import ON_A_GPU
from ..images.options import ImageConfig, SupervisedConfig


@options
class CertifiedNetwork:
    """Square layers between a padded image and a head of unit columns."""

    kind: Literal["steps", "spectral", "plain"] = "steps"
    """steps: on convex potentials, which move no two states apart. spectral: ReLU
    layers with weights divided by their norms. plain: ReLU layers without a bound."""
    num_layers: Depth = 6
    """Depth."""
    width: Width = 128
    """Width of the state and of its hidden units; of convolutions, the channels."""
    convolutional: bool = False
    """Steps by convolutions of 3 x 3. Else dense layers on flattened images."""
    block: Annotated[int, Field(ge=1, le=8)] = 1
    """Side of the blocks of pixels that become channels, which divides the sides of
    the images, only for convolutions."""


@options
class CertifiedConfig(SupervisedConfig):
    """Classify images with a radius in which no disturbance changes the answer
    (Meunier et al. 2022, Araujo et al. 2023)."""

    task: ClassVar[str] = "certified"
    metric: ClassVar[str] = "certified accuracy %, mean over the radii"
    best_by: ClassVar[str] = "certified"

    epochs: Count = 160
    """Passes over the train split."""
    validate_every: Count = 20
    """Epochs between validations. Each writes a checkpoint."""
    offset: NonNegative = 0.8
    """Offset of the margin loss, in units of a radius times the square root of 2: the
    larger, the larger radii, and the fewer right answers."""
    temperature: Positive = 0.1
    """Temperature of the margin loss, in the same units."""
    radii: Levels = (0.25, 0.5, 0.75, 1.0)
    """Euclidean radii of certified accuracy, with pixels in [0, 1]."""
    attacks: Levels = (0.25, 0.5, 1.0)
    """Radii of attacks by projected gradients. No number: no attack, which saves most
    of the time of an evaluation."""
    attack_steps: Count = 100
    """Steps of an attack, from the image and from a random start."""
    attack_examples: Count = 400
    """Test images that are attacked, evenly spread."""
    optimizer: OptimizerConfig = dataclasses.field(
        default_factory=lambda: OptimizerConfig(learning_rate=1e-2)
    )
    data: ImageConfig = dataclasses.field(default_factory=ImageConfig)
    network: CertifiedNetwork = dataclasses.field(  # pyright: ignore
        default_factory=CertifiedNetwork
    )
    """The network that is certified, which is none of the others."""

    def check(self) -> None:
        """Checks the rules of images, and of the network."""
        super().check()
        if not self.radii:
            raise OptionError("radii", "one number or more", ())
        network = self.network
        if network.convolutional and network.kind != "steps":
            allowed = f"steps with {option_text('network.convolutional', True)}"
            raise OptionError("network.kind", allowed, network.kind)
        if network.block > 1 and not network.convolutional:
            allowed = f"1 without {option_text('network.convolutional', True)}"
            raise OptionError("network.block", allowed, network.block)

    @property
    def title(self) -> str:
        """The kind of layers."""
        return f"certified-{self.network.kind}"


def _certified(
    summary: str, expect: str, network: CertifiedNetwork, **given: Any
) -> Experiment:
    config = CertifiedConfig(network=network, **given)
    return Experiment(config, summary, "Meunier 2022, Araujo 2023", expect)


EXPERIMENTS = {
    "certified-digits": _certified(
        "digits with certified radii, by steps on convex potentials",
        "98.8% clean, certified 93.0, 73.3, 29.5 and 1.5% at .25, .5, .75 and 1 (seed"
        " 0); 45 s of CPU",
        CertifiedNetwork(),
    ),
    "certified-digits-spectral": _certified(
        "the same by layers under spectral normalisation",
        "95.8% clean, certified 88.5, 64.5, 30.8 and 5.3%, seed 0",
        CertifiedNetwork(kind="spectral"),
        offset=1.0,
        optimizer=OptimizerConfig(learning_rate=3e-3),
    ),
    "certified-digits-plain": _certified(
        "the same by a plain network, whose bound is useless",
        "96.8% clean, certified 0%, seed 0",
        CertifiedNetwork(kind="plain"),
        offset=0.0,
        temperature=1.0,
        optimizer=OptimizerConfig(learning_rate=3e-4, weight_decay=0.1),
    ),
    "certified-cifar10": _certified(
        "CIFAR-10 with certified radii, by convolutional steps",
        ON_A_GPU,
        CertifiedNetwork(width=64, convolutional=True, block=4),
        offset=0.3,
        radii=(36 / 255, 72 / 255, 108 / 255),
        attacks=(36 / 255, 108 / 255),
        data=ImageConfig(source="cifar10"),
        epochs=200,
        batch_size=128,
        augment=True,
    ),
}
