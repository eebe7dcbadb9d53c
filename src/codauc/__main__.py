"""`python -m codauc` is the command `codauc`."""

import os
import sys

# Nothing else is imported yet: Python puts the current directory first, where a file could
# take the place of any module.
if (
    sys.path[0] == os.getcwd() != os.path.dirname(os.path.dirname(__file__))
    and not sys.flags.safe_path
):
    del sys.path[0]

from codauc.cli.main import main

sys.exit(main())
