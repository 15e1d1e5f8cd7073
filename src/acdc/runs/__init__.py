"""The folder of a run: its files, their contents as types, and one reader for all of them."""
