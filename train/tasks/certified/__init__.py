"""Classify images with certified radii."""
