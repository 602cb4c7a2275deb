"""The tasks: each says its model, its batch, its layer losses and its evaluation."""
