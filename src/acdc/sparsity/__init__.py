"""Which weights may be pruned, how many, in which pattern, and exactly which ones."""
