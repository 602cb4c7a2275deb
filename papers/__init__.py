"""The figures of single papers, drawn again with this library; `python -m papers.NAME` draws those of one."""

NAMES = ("yang2022",)
