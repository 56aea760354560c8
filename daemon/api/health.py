"""What the daemon answers about itself. None of it loads a model, asks a worker or shows a path."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from ... import __version__
from ..http.json_body import decode_own
from ..http.streams import read_body
from ..service import Service
from ..snapshot import StatusSnapshot, WorkerSnapshot
from ..workers.lifecycle import State

_MAX_BODY = 1024


def json_response(value: Any, status: int = 200) -> Response:
    """Any dataclass, dictionary or list as a JSON response."""
    return Response(msgspec.json.encode(value), status, media_type="application/json")


def health_routes(service: Service) -> list[Route]:
    """`/`, the health checks, and the daemon's own status and shutdown."""

    async def root(_request: Request) -> Response:
        return PlainTextResponse("agentserve is running")

    async def health(_request: Request) -> Response:
        return json_response(_health(service.snapshot()))

    async def live(_request: Request) -> Response:
        return json_response({"status": "alive", "alive": True, "version": __version__})

    async def ready(_request: Request) -> Response:
        reasons = _reasons(service.snapshot())
        answer = {"status": "not_ready" if reasons else "ready", "ready": not reasons, "reasons": reasons}
        return json_response(answer, 503 if reasons else 200)

    async def status(_request: Request) -> Response:
        return json_response(service.snapshot())

    async def shutdown(request: Request) -> Response:
        body = await read_body(request.scope, request.receive, _MAX_BODY)
        wish = decode_own(body or b"{}", ShutdownBody)
        service.request_shutdown(wish.drain)
        return json_response({"stopping": True, "active": len(service.ledger.active)}, 202)

    return [
        Route("/", root),
        Route("/health", health),
        *(Route(f"/health/{name}", live) for name in ("live", "liveness")),
        *(Route(f"/health/{name}", ready) for name in ("ready", "readiness")),
        Route("/agentserve/v1/status", status),
        Route("/agentserve/v1/shutdown", shutdown, methods=["POST"]),
    ]


class ShutdownBody(msgspec.Struct):
    """With `drain`, running requests get the time of the setting `drain_timeout`; without it they end at once."""

    drain: bool = True


def _health(snapshot: StatusSnapshot) -> dict[str, Any]:
    failed = [worker for worker in snapshot.workers if worker.state == State.FAILED.value]
    is_degraded = bool(failed) or snapshot.startup.phase == "failed"
    return {
        "status": "degraded" if is_degraded else "healthy",
        "version": snapshot.version,
        "uptime_s": snapshot.uptime_s,
        "speculative": any(worker.model.speculative for worker in snapshot.workers if worker.model),
        "models": [
            {
                "name": worker.name,
                "state": worker.state,
                "device": worker.model.device if worker.model else None,
                "error": worker.error,
                "prefix_memory": _prefix_memory(worker),
                "speculation": _speculation(worker),
            }
            for worker in snapshot.workers
        ],
        "queue": {"active": snapshot.requests.active, "queued": snapshot.requests.queued},
        "requests": snapshot.requests,
        "limits": snapshot.limits,
        "memory": {
            "daemon_rss_bytes": snapshot.rss_bytes,
            "worker_rss_bytes": sum(worker.rss_bytes for worker in snapshot.workers),
        },
    }


def _speculation(worker: WorkerSnapshot) -> dict[str, Any]:
    """What drafts came to since the worker started."""
    drafts = worker.drafts
    draft_model = worker.model.draft_model if worker.model else None
    return {
        "speculative": worker.model is not None and worker.model.speculative,
        "draft_model": draft_model.name if draft_model else None,
        "attempts": drafts.attempts,
        "drafted": drafts.drafted,
        "accepted": drafts.accepted,
        "acceptance_rate": round(drafts.acceptance_rate, 4),
        "accept_length": round(drafts.accept_length, 3),
        "tokens_per_step": round(drafts.tokens_per_step, 3),
    }


def _prefix_memory(worker: WorkerSnapshot) -> dict[str, Any]:
    """What is remembered and what that saved since the worker started."""
    tiers = worker.tiers
    free = worker.blocks_total - worker.blocks_used - worker.blocks_cached
    return {
        "tokens_reused": worker.tokens_reused,
        "tokens_computed": worker.tokens_prefilled,
        "hit_rate": round(worker.hit_rate, 4),
        "blocks": {"used": worker.blocks_used, "cached": worker.blocks_cached, "free": free},
        "tiers": {
            "pool": {"used_bytes": tiers.pool, "budget_bytes": tiers.pool_budget},
            "pinned": {"used_bytes": tiers.pinned, "budget_bytes": tiers.pinned_budget},
            "disk": {"used_bytes": tiers.disk, "budget_bytes": tiers.disk_budget},
        },
        "sessions": worker.sessions,
    }


def _reasons(snapshot: StatusSnapshot) -> list[str]:
    startup = snapshot.startup
    reasons = []
    if startup.phase != "ready":
        reasons.append(f"start: {startup.error or startup.detail or startup.phase}")
    if snapshot.draining:
        reasons.append("shutting down")
    return reasons
