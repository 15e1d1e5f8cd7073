"""Measurements of models: predicted cost, dynamics, agreement and memorization."""
