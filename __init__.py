"""agentserve: a local model server for coding agents."""

__version__ = "0.1.0"
