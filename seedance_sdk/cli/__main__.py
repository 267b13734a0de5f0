"""``python -m seedance_sdk.cli``: the ``seedance`` command where its script is not on the path."""

import sys

from seedance_sdk.cli import main

__all__: list[str] = []

if __name__ == "__main__":
    sys.exit(main())
