"""Says whether a log is right: its chain, its sequence, its rules. Reads brokers and archives."""
