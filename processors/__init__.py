"""What runs beside the log: the owners of partitions, their effects, reactions, and the cleaner."""
