"""Decoders of language: layers, cache, generation, drafts and low-rank changes."""

__all__: list[str] = []
