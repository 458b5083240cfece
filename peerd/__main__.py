"""``python -m peerd``."""

from __future__ import annotations

import sys

from peerd.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
