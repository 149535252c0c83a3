SELECT (extract(epoch FROM at) * 1000000)::bigint FROM partitions WHERE partition = %(partition)s
