"""The daemon with workers of a test: `daemon_with_worker.py WORKER [option...]`.

WORKER is a JSON list: the program of the workers, and what follows their descriptor.
"""

from __future__ import annotations

import json
import sys
from functools import partial

from agentserve.daemon import launch
from agentserve.daemon.server import Daemon

if __name__ == "__main__":
    program, *switches = json.loads(sys.argv[1])
    launch.Daemon = partial(  # type: ignore[misc, assignment]
        Daemon, command=lambda descriptor: [sys.executable, "-P", program, str(descriptor), *switches]
    )
    sys.exit(launch.main(sys.argv[2:]))
