UPDATE partitions SET at = %(at)s WHERE partition = %(partition)s
