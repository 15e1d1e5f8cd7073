"""The choice of weights to prune: candidates, budgets, patterns, and exact selection."""
