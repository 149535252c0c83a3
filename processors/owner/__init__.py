"""The owner of a partition: reads its intakes, decides, appends, proves, releases effects."""
