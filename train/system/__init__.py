"""What the application asks of the machine: files, signals, memory, the terminal."""
