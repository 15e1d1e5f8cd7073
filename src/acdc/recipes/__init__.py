"""Recipes: what a run computes, as TOML files."""
