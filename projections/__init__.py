"""Read models in Postgres, each derived from the log and rebuildable from it."""
