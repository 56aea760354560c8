"""A worker without an engine: it speaks the protocol and does what it is told, for tests of failures.

`python fake_worker.py FD [switch...]` with the switches below. Each request gives its orders as words in its
last message, for instance `deltas=3 step=0.01`:

    deltas=N      send N pieces of text, `w0 `, `w1 ` …          step=S     seconds before each piece
    prefill=S     seconds between Accepted and Started           hold       never end by itself
    die_after=N   SIGKILL itself after N pieces                  fail_after=N   Failed after N pieces
    die_queued    SIGKILL itself instead of Started
    reject=CODE   refuse with 400 and this code                  burst=N    send N pieces at once
                                                                 size=N     … each padded to N characters

Cancellations are told on standard error, which the daemon logs.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import time
from multiprocessing.connection import Connection

from agentserve.engine.messages.sessions import ListSessions, SessionInfo, SessionList
from agentserve.engine.protocol import (
    Accepted,
    Cancel,
    CancelReason,
    DrafterCounts,
    DraftStats,
    Failed,
    Finished,
    FinishReason,
    FromWorker,
    Generate,
    GenerateRequest,
    LoadFailed,
    LoadModel,
    LoadProgress,
    LoadStage,
    ModelInfo,
    Ready,
    Rejected,
    SelfTest,
    Shutdown,
    Started,
    TextDelta,
    TierBytes,
    Timings,
    WorkerStats,
)

CONTEXT = 4096


def switches() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("fd", type=int)
    parser.add_argument("--ignore-sigterm", action="store_true")
    parser.add_argument("--ignore-shutdown", action="store_true")
    parser.add_argument("--fail-load", metavar="CODE")
    parser.add_argument("--die-loading", action="store_true")
    parser.add_argument("--exit-loading", type=int)
    parser.add_argument("--slow-load", type=float, default=0.0)
    parser.add_argument("--deaf", action="store_true", help="reads nothing after it is ready")
    return parser.parse_args()


NO_DRAFTS = DraftStats()
# 4 drafts in 6 steps, 9 tokens drafted and 5 of them accepted.
DRAFTS = DraftStats(
    steps=6,
    tokens=11,
    emitted=9,
    seconds=0.0004,
    drafters=(DrafterCounts("suffix", 3, 8, 5, 1), DrafterCounts("guess", 1, 1, 0, 0)),
    drafted_at=(4, 3, 2),
    accepted_at=(3, 1, 1),
)


class FakeWorker:
    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.sending = threading.Lock()
        self.cancelled: dict[str, CancelReason] = {}
        self.wake = threading.Condition()
        self.running: list[threading.Thread] = []

    def send(self, message: FromWorker) -> None:
        with self.sending:
            self.connection.send(message)

    def load(self, orders: argparse.Namespace) -> bool:
        load = self.connection.recv()
        assert isinstance(load, LoadModel)
        self.send(LoadProgress(LoadStage.READING))
        self.send(LoadProgress(LoadStage.COMPILING))
        time.sleep(orders.slow_load)
        if orders.die_loading:
            os.kill(os.getpid(), signal.SIGKILL)
        if orders.exit_loading is not None:
            print("the last words of the worker", file=sys.stderr, flush=True)
            os._exit(orders.exit_loading)
        if orders.fail_load:
            self.send(LoadFailed(orders.fail_load, "the model file is cut off"))
            return False
        self.send(Ready(model_info(load), SelfTest(True, True, True, 0.01), 0.1, compile_cache_hit=True))
        tiers = TierBytes(12, 100, 5, 50, 3, 1000)
        self.send(WorkerStats(100, 7, 5, 2, 0, 0, 0, 40, 30, 20, 0.0, 0.0, tiers=tiers, drafts=DRAFTS))
        return True

    def serve(self, *, ignore_shutdown: bool) -> None:
        while True:
            message = self.connection.recv()
            if isinstance(message, Generate):
                thread = threading.Thread(target=self.answer, args=(message.request,), daemon=True)
                thread.start()
                self.running.append(thread)
            elif isinstance(message, ListSessions):
                self.send(SessionList(message.request_id, (SESSION,)))
            elif isinstance(message, Cancel):
                self.cancel(message.request_id, message.reason)
            elif isinstance(message, Shutdown) and not ignore_shutdown:
                self.cancel_all(CancelReason.SHUTDOWN)
                return

    def cancel(self, request_id: str, reason: CancelReason) -> None:
        print(f"cancel {reason.value}", file=sys.stderr, flush=True)
        with self.wake:
            self.cancelled[request_id] = reason
            self.wake.notify_all()

    def cancel_all(self, reason: CancelReason) -> None:
        with self.wake:
            self.cancelled = AllCancelled(reason)
            self.wake.notify_all()
        for thread in self.running:
            thread.join()

    def pause(self, request_id: str, seconds: float | None) -> bool:
        """Waits; False when the request was cancelled meanwhile."""
        with self.wake:
            return not self.wake.wait_for(lambda: request_id in self.cancelled, seconds)

    def answer(self, request: GenerateRequest) -> None:
        name = request.request_id
        orders = words(request.messages[-1].content or "")
        if "reject" in orders:
            self.send(Rejected(name, 400, orders["reject"], "refused", "messages", 5000, CONTEXT))
            return
        self.send(Accepted(name, len(request.messages), 100, False, 0, 0.001, request.draft_tokens or 0))
        if not self.pause(name, float(orders.get("prefill", 0))):
            self.end(name, 0)
            return
        if "die_queued" in orders:
            os.kill(os.getpid(), signal.SIGKILL)
        self.send(Started(name, "rebuild", 0, "cold"))
        self.speak(name, orders)

    def speak(self, name: str, orders: dict[str, str]) -> None:
        for i in range(int(orders.get("burst", 0))):
            self.send(TextDelta(name, f"w{i} ".rjust(int(orders.get("size", 0))), 1))
        count = int(orders.get("deltas", 0))
        for i in range(count + 1):
            if orders.get("die_after") == str(i):
                os.kill(os.getpid(), signal.SIGKILL)
            if orders.get("fail_after") == str(i):
                self.send(Failed(name, "internal_error", "the engine failed while it computed this request"))
                return
            if i == count or not self.pause(name, float(orders.get("step", 0))):
                break
            self.send(TextDelta(name, f"w{i} ", 1))
        if "hold" in orders:
            self.pause(name, None)
        self.end(name, count, DRAFTS if "drafts" in orders else NO_DRAFTS)

    def end(self, name: str, tokens: int, drafts: DraftStats = NO_DRAFTS) -> None:
        with self.wake:
            reason = self.cancelled.get(name)
        finish: FinishReason = "stop" if reason is None else "cancelled"
        timings = Timings(0.001, 0.001, 0.01, 0.02, 0.1)
        self.send(Finished(name, finish, 10, 4, tokens, timings, cancel_reason=reason, drafts=drafts))


SESSION = SessionInfo("mine", "", 100, 2048, "pool", 96, "append", 1, 2, 0, 1.0, 2.0)


class AllCancelled(dict[str, CancelReason]):
    """Every request is cancelled."""

    def __init__(self, reason: CancelReason) -> None:
        self.reason = reason

    def __contains__(self, _name: object) -> bool:
        return True

    def get(self, _name: object, _default: object = None) -> CancelReason:
        return self.reason


def words(text: str) -> dict[str, str]:
    return dict(word.partition("=")[::2] for word in text.split())


def model_info(load: LoadModel) -> ModelInfo:
    return ModelInfo(load.name, "fake", "mock", CONTEXT, 10, 1000, 2000, 64, 4096, 32, False, "fake-1")


def main() -> None:
    orders = switches()
    if orders.ignore_sigterm:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    worker = FakeWorker(Connection(orders.fd))
    try:
        if not worker.load(orders):
            return
        if orders.deaf:
            signal.pause()
        worker.serve(ignore_shutdown=orders.ignore_shutdown)
    except (EOFError, OSError):
        os._exit(1)


if __name__ == "__main__":
    main()
