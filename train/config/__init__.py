"""Options that all tasks share; these modules import nothing that is slow to load."""
