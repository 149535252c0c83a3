"""The only code that knows Kafka's wire: topics, records, appends, and who may write."""
