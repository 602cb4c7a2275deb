"""The material of a language experiment: a decoder, and rows of instructions in its tokens."""

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..config.errors import UserError
from ..config.language import LanguageConfig
from ..data import instructions
from ..data.answers import AnswerTokenizer, tell
from ..data.packing import PackedData
from ..data.splits import SPLITS
from ..task import Log
from .common import keep_examples
from .facts import MANY
from .language_model import Given, given_of, open_given


class LanguageMaterial:
    """A decoder and instructions as rows of its tokens; without the latter, all that prediction needs.

    Attributes:
      given: what the decoder starts from.
      answers: makes tokens of conversations.
      packed: rows of the three splits; None where there are no data.
      checksums: of the conversations of each split.
    """

    def __init__(
        self,
        given: Given,
        answers: AnswerTokenizer,
        *,
        packed: PackedData | None,
        checksums: Mapping[str, int] | None = None,
    ) -> None:
        self.given, self.answers, self.checksums = given, answers, dict(checksums or {})
        self._packed = packed

    @property
    def packed(self) -> PackedData:
        """Rows of the three splits, where there are data."""
        assert self._packed is not None
        return self._packed

    @property
    def num_rows(self) -> int:
        """Rows of the train split; where there are no data, more than any batch."""
        return MANY if self._packed is None else self._packed.num_rows("train")

    def steps_an_epoch(self, *, batch_size: int) -> int:
        """Batches that fit into a pass over the train split."""
        return MANY if self._packed is None else self._packed.steps_an_epoch(batch_size=batch_size)

    @functools.cached_property
    def embedding_std(self) -> float:
        """Standard deviation of an entry of the clean embeddings of train tokens; 1 where these are drawn."""
        given = self.given.summary if self.given.has_weights else None
        if given is None:
            return 1.0  # what drawn embeddings start with; a plan of weights that are not there takes any
        train = self.packed.whole("train")
        counts = np.bincount(train.tokens[train.segments > 0], minlength=len(given.means))
        shares = counts / counts.sum()
        variance = float(shares @ given.squares) - float(shares @ given.means) ** 2
        if not variance > 0.0:
            raise UserError("all given embeddings of train tokens are one number, so noise would be 0; give others")
        return float(np.sqrt(variance))

    def model_spec(self) -> dict[str, Any]:
        """All that a model needs to know: `material_of` makes the same of it, without data and parameters."""
        return {
            "model": self.given.model_spec(),
            "template": self.answers.template,
            "embedding_std": self.embedding_std,
        }

    def data_fingerprint(self) -> dict[str, Any]:
        """Figures that change when the conversations, their tokens or the given parameters do."""
        given = self.given.summary
        return {
            "examples": self.packed.texts,
            "rows": {split: self.packed.num_rows(split) for split in SPLITS},
            "checksums": self.checksums,
            "tokenizer_checksum": self.given.tokenizer.checksum,
            "weights_checksum": None if given is None else given.checksum,
        }


def load_material(config: LanguageConfig, log: Log) -> LanguageMaterial:
    """Opens the instructions, and the decoder whose tokens they become."""
    data = instructions.load(config.data, log=log)
    keep_examples(data, config)
    given = open_given(config, log)
    answers = AnswerTokenizer(given.tokenizer, config.template)
    by_split = {split: answers.fitting(data.whole(split), config.max_length) for split in SPLITS}
    for split, tokenised in by_split.items():
        tell(tokenised, split, config.max_length, log)
    texts = {split: one.texts for split, one in by_split.items()}
    packed = PackedData(texts, length=config.max_length, packing=config.packing)
    return LanguageMaterial(given, answers, packed=packed, checksums=data.checksums)


def material_of(facts: Mapping[str, Any]) -> LanguageMaterial:
    """Builds the material of `LanguageMaterial.model_spec`: enough for a model, which is then given parameters."""
    given = given_of(facts["model"])
    material = LanguageMaterial(given, AnswerTokenizer(given.tokenizer, facts["template"]), packed=None)
    material.__dict__["embedding_std"] = facts["embedding_std"]  # a cached property
    return material
