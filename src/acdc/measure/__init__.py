"""What a model costs and what it knows."""
