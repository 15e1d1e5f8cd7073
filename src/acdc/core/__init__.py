"""The sparsifier, which attaches a method to a model and its optimizer."""
