DELETE FROM open_jobs o USING staged_jobs s WHERE o.id = s.id AND s.finished_at IS NOT NULL
