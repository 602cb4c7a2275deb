"""Options that all tasks share. These modules import nothing that is slow to load."""
