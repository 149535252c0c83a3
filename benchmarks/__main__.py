"""`make bench`."""

from benchmarks.end_to_end import main

main()
