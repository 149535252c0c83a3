UPDATE partitions
SET entry = %(entry)s,
    at = %(at)s,
    commands = %(commands)s,
    requests = %(requests)s,
    misfits = misfits + %(misfits)s,
    unknown = unknown + %(unknown)s
WHERE partition = %(partition)s
