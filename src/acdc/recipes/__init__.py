"""Recipes: TOML files that say what a run computes."""
