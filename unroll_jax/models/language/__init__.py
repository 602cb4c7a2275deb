"""Decoders of language: layers, cache, generation, speculation with early exits, and
low-rank changes."""

__all__: list[str] = []
