"""`python -m kvsim.cli`."""

from kvsim.cli import main

main()
