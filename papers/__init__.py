"""The figures of single papers, drawn again with this library.
`python -m papers.NAME` runs one."""

NAMES = ("yang2022",)
