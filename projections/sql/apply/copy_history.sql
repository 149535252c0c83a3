COPY job_events (
    born, position, partition, first_seq, last_seq, job_id, packed, request, payload
) FROM STDIN (FORMAT BINARY)
