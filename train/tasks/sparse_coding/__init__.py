"""Find sparse codes of images."""
