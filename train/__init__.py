"""The training application: `python -m train`."""
