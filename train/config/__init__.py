"""Options that all tasks share; these modules import nothing that takes time to load."""
