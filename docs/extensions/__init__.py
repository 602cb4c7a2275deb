"""What Sphinx does for this site beyond its own extensions."""
