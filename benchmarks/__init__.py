"""What acdc costs, measured beside what else there is. Run as `python -m benchmarks.select`, `benchmarks.overhead`."""
