"""Data of the training application: one source a file, prepared once, read in
reproducible batches."""
