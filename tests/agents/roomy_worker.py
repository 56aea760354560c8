"""The worker with the model of `scripted_model`, and a context for all that agents tell: 90,000 characters and more.

python roomy_worker.py FD TEMPLATE
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from agentserve.engine import worker
from agentserve.engine.runners import reference_model
from scripted_model import scripted_backend

if __name__ == "__main__":
    backend = replace(scripted_backend(sys.argv[2]), context_length=262_144)
    reference_model.open_reference = lambda _spec: backend
    worker.main()
