"""Tasks: models, batches, layer losses and evaluations, in the frame of `common`. No
task imports another."""
