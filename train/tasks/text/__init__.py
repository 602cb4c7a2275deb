"""Classify texts whose embeddings are perturbed."""
