"""Denoise sets of grey images."""
