"""Small faults in the library and the application, each of which some test must catch: `python -m tests.faults`."""
