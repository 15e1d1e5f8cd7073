"""Figures of a report. Each function returns a Chart, or None where a run has nothing to show."""
