"""What becomes of results, failed jobs and objects when their time is over, or their owner goes."""
