"""Sparse-training methods, one file each, behind one interface (acdc.sparsifier.Method)."""
