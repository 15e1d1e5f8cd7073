"""How long tests wait for what must happen: until it does."""

HANG = 900
"""Seconds. No measurement: only what hangs takes as long, on however slow and busy a machine."""
