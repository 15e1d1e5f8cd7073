"""Reports: a run as one page that shows what was trained, the results, and how they came about."""
