"""Tasks: models, batches, layer losses and evaluations, in the frame of `common`; no
task imports another."""
