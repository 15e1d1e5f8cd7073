"""Models of the paper's experiments, and a small one for the default run."""
