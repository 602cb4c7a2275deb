"""Images classified with a certified radius: options, and the task."""
