"""A router on its own, without a daemon."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from agentserve.daemon.config import Settings
from agentserve.daemon.store.registry import ModelStore
from agentserve.daemon.workers.process import Command
from agentserve.daemon.workers.router import Router


def routed(
    scenario: Callable[[Router], Awaitable[None]], store: ModelStore, command: Command, **settings: Any
) -> None:
    """Runs a scenario of at most 20 s on a router over `store`, whose workers `command` starts, and stops it."""

    async def bounded() -> None:
        router = Router(Settings(**settings), store, command=command)
        try:
            async with asyncio.timeout(20):
                await scenario(router)
        finally:
            await router.stop()

    asyncio.run(bounded())
