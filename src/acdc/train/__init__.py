"""Training: the recipe, the loop, what it shows and what it writes."""
