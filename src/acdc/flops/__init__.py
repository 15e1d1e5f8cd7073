"""The theoretical cost of a forward pass and of training, by non-zero weights."""
