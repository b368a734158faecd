"""`python -m benchmarks` is `cirm bench`."""

import sys

from cirm.cli import main

sys.argv[0:1] = ["cirm", "bench"]
main()
