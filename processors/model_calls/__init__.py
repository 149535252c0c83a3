"""Calls of models (HTTP targets): where a call may go, how one is made, and what became of it."""
