"""The figures of single papers, drawn again with this library;
`python -m papers.NAME` draws one paper's."""

NAMES = ("yang2022",)
