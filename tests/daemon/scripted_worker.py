"""A real worker with the model of `scripted_model`: `python scripted_worker.py FD TEMPLATE`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from agentserve.engine import worker
from agentserve.engine.runners import reference_model
from scripted_model import open_scripted

if __name__ == "__main__":
    reference_model.open_reference = open_scripted(sys.argv[2])
    worker.main()
