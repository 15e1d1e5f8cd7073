"""The figures of a report. Each function returns a Chart, or None if a run has nothing to show."""
