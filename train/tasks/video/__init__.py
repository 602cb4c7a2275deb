"""Denoise grey video."""
