"""`python -m papers.yang2022 ...` is `unroll-jax figures yang2022 ...`."""

import sys

from unroll_jax.train.__main__ import main

if __name__ == "__main__":
    sys.exit(main(["figures", "yang2022", *sys.argv[1:]]))
