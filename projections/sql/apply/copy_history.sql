COPY job_events (first_seq, last_seq, job_id, packed) FROM STDIN (FORMAT BINARY)
