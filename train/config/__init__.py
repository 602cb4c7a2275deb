"""Options of every task: dataclasses that import nothing which takes time to load."""
