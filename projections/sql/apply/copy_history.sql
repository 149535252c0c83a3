COPY job_events (first_seq, last_seq, partition, position, job_id, packed, request, payload)
FROM STDIN (FORMAT BINARY)
