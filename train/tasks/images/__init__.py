"""Classify images, and label the pixels of scenes."""
