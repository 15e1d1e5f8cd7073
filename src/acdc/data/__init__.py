"""Data sets, each loaded to the device once."""
