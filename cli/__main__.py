"""`python -m agentserve.cli`."""

from .app import main

main()
