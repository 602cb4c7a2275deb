"""Extensions of Sphinx for this site."""
