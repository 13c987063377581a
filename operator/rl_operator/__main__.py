"""`python -m rl_operator`: the operator."""

import sys

from rl_operator.runtime.main import main

if __name__ == "__main__":
    sys.exit(main())
