"""What may happen to a job: pure rules. No I/O, no clock, no chance, no async."""
