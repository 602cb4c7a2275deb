"""Texts as words: the lower-case words, clitics and signs that GloVe's vectors are named after."""

import re

__all__ = ["is_whole", "tokenise", "without_breaks"]

_BREAK = re.compile(r"<br\s*/?>", re.IGNORECASE)
_CLITIC = re.compile(r"(?<=\w)(n't|'(?:s|m|d|re|ve|ll))\b")
_WORD = re.compile(
    r"""-[lr][rcs]b- | `` | '' | \.{3} | --  # brackets and other signs of more than one letter
      | (?:[^\W\d_]\.){2,}        # initials: u.s.
      | n't\b | '(?:s|m|d|re|ve|ll)\b  # what was split off a word
      | \d+(?:[.,:]\d+)+             # numbers: 3.5, 1,000, 10:30
      | \w+(?:[-']\w+)*              # words: well-made, o'brien
      | [^\w\s]                      # any other sign by itself""",
    re.VERBOSE,
)


def without_breaks(text: str) -> str:
    """The text with a space for each line break of HTML."""
    return _BREAK.sub(" ", text)


def is_whole(text: str) -> bool:
    """Whether no character of a text is half a surrogate pair, which JSON and command lines can hold, UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def tokenise(text: str) -> list[str]:
    """Splits a text into lower-case words.

    Signs stand alone and clitics are split off, as in the Penn Treebank, whose words GloVe's vectors are named after
    and SST-2 is already split into. The line breaks of HTML, of which IMDB is full, are left out. Nothing is cut off: a
    long text has many words.

    Example:
      >>> tokenise("It's well-made, but I don't care.<br /><br />3.5 stars...")
      ['it', "'s", 'well-made', ',', 'but', 'i', 'do', "n't", 'care', '.', '3.5', 'stars', '...']
    """
    # SST-2 has the slash behind a backslash, as the treebank does.
    plain = without_breaks(text.lower()).replace("’", "'").replace("\\/", " / ")
    return _WORD.findall(_CLITIC.sub(r" \1", plain))
