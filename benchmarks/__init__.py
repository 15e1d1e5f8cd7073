"""Benchmarks of acdc against alternatives. Run as `python -m benchmarks.select`, `benchmarks.overhead`."""
