"""Attaching a method to a model and its optimizer."""
