"""`python -P -m agentserve.daemon`."""

from __future__ import annotations

import sys

from .launch import main

sys.exit(main())
