"""Answers of language models to a few prompts of the test split, side by side."""

from collections.abc import Sequence

from ..system.terminal import Table
from ..task import Row
from .groups import Setting, Variant

LONGEST = 500  # letters of a text that are shown


def completion_tables(settings: Sequence[Setting]) -> list[Table]:
    """Greedy answers, a row a prompt and strength of noise, a column a variant; nothing where a run has none."""
    return [_table(setting) for setting in settings if all(map(_answers, setting.variants))]


def _answers(variant: Variant) -> Sequence[Row]:
    """Returns the answers of the variant's first run."""
    return variant.runs[0].evaluation.get("completions", [])


def _table(setting: Setting) -> Table:
    columns = [{row["prompt"]: row["answers"] for row in _answers(variant)} for variant in setting.variants]
    rows = []
    for row in _answers(setting.variants[0]):
        for gamma in row["answers"]:
            given = [column.get(row["prompt"], {}).get(gamma, "-") for column in columns]
            rows.append((row["prompt"], f"{float(gamma):g}", row["wanted"], *given))
    return Table(
        f"Answers to prompts of the test split, {setting.title}",
        ("prompt", "gamma", "in the data", *(variant.title for variant in setting.variants)),
        tuple(tuple(map(_cut, row)) for row in rows),
        "Greedy; gamma is of noise on all embeddings, those of the answer included. Of several seeds, the first.",
        words=True,
    )


def _cut(text: str) -> str:
    text = text or "(empty)"
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."
