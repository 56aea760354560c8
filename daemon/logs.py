"""Where log lines go: a rotating file for a detached daemon, standard error in the foreground."""

from __future__ import annotations

import logging
import sys
from logging.handlers import RotatingFileHandler
from pathlib import Path

_FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
_FILE_BYTES = 10 * 2**20
_FILES_KEPT = 3


def configure_logging(level: str, log_file: Path | None) -> None:
    """Sends all loggers to `log_file`, or to standard error when it is None. Raises OSError."""
    handler: logging.Handler
    if log_file is None:
        handler = logging.StreamHandler(sys.stderr)
    else:
        handler = RotatingFileHandler(
            log_file, maxBytes=_FILE_BYTES, backupCount=_FILES_KEPT, encoding="utf-8"
        )
    handler.setFormatter(logging.Formatter(_FORMAT))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("uvicorn.error").addFilter(_is_news)


def _is_news(record: logging.LogRecord) -> bool:
    # A stream that is cut on purpose ends without a last chunk; whoever cut it has logged why.
    return record.getMessage() != "ASGI callable returned without completing response."
