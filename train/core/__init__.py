"""A run: tasks and plans as values, the step, the loop and the evaluation."""
