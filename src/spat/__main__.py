"""`python -m spat` is the command `spat`."""

import sys

from spat.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
