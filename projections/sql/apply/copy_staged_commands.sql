COPY staged_commands (partition, position, at, id, outcome, detail, code, job_id, operation_id)
FROM STDIN (FORMAT BINARY)
