"""A run as one page: what was trained, what came out, and how it got there."""
