"""A task of the user's functions and arrays."""
