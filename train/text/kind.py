"""Text experiments, as the commands see them."""

from pathlib import Path
from typing import Any

from train.constrained import feasibility_words, judgement, plain_slacks, tunables, variants
from train.recipe import Kind
from train.text.config import EncoderOptions, TextEncoderConfig, TextUnrolledConfig, check_text
from train.text.evaluate import evaluate_text
from train.text.material import TextMaterial, load_material
from train.text.recipe import text_recipe
from train.text.report import write_text_report
from train.text.task import text_task
from train.tuning import Tunable, Tuning

__all__ = ["TEXT_ENCODER", "TEXT_UNROLLED"]

Config = TextEncoderConfig | TextUnrolledConfig


def _label(config: Config) -> str:
    given = config.model.pretrained if isinstance(config.model, EncoderOptions) else config.model.embeddings
    model = f"L{config.model.num_layers}" if given is None or not isinstance(config.model, EncoderOptions) else ""
    from_what = Path(given).name if given else ""
    words = (config.data.source, model, from_what, config.method, f"gamma{config.train_gamma}", f"seed{config.seed}")
    return "-".join(word for word in words if word)


def _evaluate(config: Config, material: TextMaterial, state: Any, folder: Path) -> dict[str, Any]:
    del folder  # the report draws
    task, slacks = text_task(config, material), plain_slacks(config, state)
    return evaluate_text(config, task, material, state.evaluated, state.multipliers, slacks)


def _verdict(found: dict[str, Any]) -> str:
    low, high = found["test_gammas"][0], found["test_gammas"][-1]
    at_training = found["accuracy"][str(float(found["train_gamma"]))]
    area = "" if found["area"] is None else f"area {found['area']:.3f} over gamma {low:g} to {high:g}, "
    return f"accuracy {at_training:.1%} at gamma {found['train_gamma']}, {area}{feasibility_words(found)}"


def _tunables(config: Config) -> dict[str, Tunable]:
    return tunables(config, primal_rate="1e-5:3e-3", dual_rate="5e-3:0.5", alpha="0.05:0.4", unit="nats")


def _report(folders: Any, out: Path, log: Any) -> None:
    write_text_report(folders, out, log=log)


def _kind(config: type) -> Kind:
    return Kind(
        config=config,
        check=check_text,
        variants=variants,
        label=_label,
        describe=lambda config: f"{config.method}, train gamma {config.train_gamma}, {config.steps} steps",
        load=load_material,
        found=lambda material: material.found(),
        recipe=lambda config, material: text_recipe(config, text_task(config, material), material),
        evaluate=_evaluate,
        verdict=_verdict,
        report=_report,
        tuning=Tuning(_tunables, "validation cross entropy (nats)", larger_is_better=False, judge=judgement),
    )


TEXT_ENCODER, TEXT_UNROLLED = _kind(TextEncoderConfig), _kind(TextUnrolledConfig)
