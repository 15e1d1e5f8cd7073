"""Training: the preparation of a run, the training loop, its console and its results."""
