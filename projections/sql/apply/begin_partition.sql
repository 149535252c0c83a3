INSERT INTO partitions (partition, application_name, layout)
VALUES (%(partition)s, %(application)s, %(layout)s)
ON CONFLICT (partition) DO NOTHING
