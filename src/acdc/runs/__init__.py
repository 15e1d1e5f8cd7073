"""A run's folder: what its files hold, as types, and one reader for all of them."""
