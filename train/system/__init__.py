"""Services of the machine: files, signals, memory, the terminal."""
