            CASE
                WHEN s.state IS NOT NULL
                    AND octet_length(o.newest) + octet_length(s.packed) > %(newest_max)s
                THEN ''::bytea
                ELSE s.packed || o.newest
            END
