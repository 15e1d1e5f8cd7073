"""Theoretical cost by non-zero weights, of a forward pass and of training."""
