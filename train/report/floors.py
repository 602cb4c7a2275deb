"""Scores that need no network, in words: a model is worth its gain over these."""

from .groups import Setting

# The floors of evaluation.json.
FLOORS = {
    "linear layer": "least squares on a frame's patch and the temporal mean, fitted at the training noise",
    "total variation": "a classical denoiser in space and time, told the variance of each noise",
    "ISTA": "as many steps as the network has layers",
    "FISTA": "as many of its steps",
    "unigram": "the token that answers of the train split have most often",
    "bigram": "the one that they have most often behind the token before",
    "linear map": "least squares, fitted at the training noise, with the ridge that is best on the validation split",
}


def floor_note(setting: Setting) -> str:
    """Describes the floors, with their share of the test split where it is not all."""
    words = ""
    for name, share in setting.floor_shares().items():
        part = f" (of {share:.0%} of the test pixels)" if share < 1.0 else ""
        words += f" {name}: {FLOORS.get(name, 'without a network')}{part}."
    return words
