"""`python -m codauc` is the command `codauc`."""

import sys

from codauc.cli import main

sys.exit(main())
