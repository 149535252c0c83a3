"""Measures what a user would ask: how many jobs, how soon, at what cost. One program a question."""
