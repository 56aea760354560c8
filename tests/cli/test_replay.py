"""The day of an agent that `tests/bench/replay.py` plays, on the built-in model: nothing is computed twice."""

from __future__ import annotations

import json
import shlex
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from cli_process import COMMAND, Cli

REPLAY = Path(__file__).parents[1] / "bench" / "replay.py"


def replay(cli: Cli, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", str(REPLAY), *arguments]
    environment = {**cli.environment, "PYTHONPATH": str(REPLAY.parent)}
    return subprocess.run(command, env=environment, text=True, capture_output=True, timeout=120, check=False)


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


def test_a_day_with_a_restart_computes_little_more_than_the_least_possible(cli: Cli) -> None:
    # A restarted daemon has to come back where it was.
    url = f"http://127.0.0.1:{(port := free_port())}"
    assert cli("up", "--port", str(port)).returncode == 0
    restart = shlex.join([*COMMAND, "restart", "--port", str(port)])
    played = replay(
        cli, url, "--tokens", "mock", "--scale", "0.2", "--check", "--json", "--restart-command", restart
    )
    assert played.returncode == 0, played.stdout + played.stderr
    day = json.loads(played.stdout)
    phases = [request["phase"] for request in day["requests"]]
    counts = {phase: phases.count(phase) for phase in phases}
    assert counts == {
        "start": 1,
        "tool turn": 10,
        "title": 3,
        "sub-agents": 6,
        "question": 1,
        "retry": 1,
        "edit": 1,
        "resume": 1,
    }
    # After the restart the conversation comes from the disk: only its new turn is computed.
    resumed = day["requests"][-1]
    assert resumed["prefilled"] < 50
    assert resumed["prompt_tokens"] > 1000
    assert day["total"]["least"] > 2000


class Forgetful(BaseHTTPRequestHandler):
    """An OpenAI-compatible server that computes every prompt anew; four characters are a token."""

    def do_GET(self) -> None:
        self._answer("application/json", json.dumps({"data": [{"id": "forgetful"}]}))

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        length = sum(len(message["content"]) for message in asked["messages"])
        usage = {
            "prompt_tokens": 10 + length // 4,
            "completion_tokens": 2,
            "prompt_tokens_details": {"cached_tokens": 0},
        }
        frames = [{"choices": [{"delta": {"content": "so be it"}}]}, {"choices": [], "usage": usage}]
        lines = [*(f"data: {json.dumps(frame)}" for frame in frames), "data: [DONE]"]
        self._answer("text/event-stream", "".join(f"{line}\n\n" for line in lines))

    def _answer(self, kind: str, text: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *arguments: object) -> None: ...


def test_a_server_that_forgets_misses_the_target(cli: Cli) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Forgetful) as server:
        threading.Thread(target=server.serve_forever).start()
        url = f"http://127.0.0.1:{server.server_port}"
        played = replay(cli, url, "--check", "--json")
        shown = replay(cli, url, "--scripted")
        server.shutdown()
    assert played.returncode == 1, played.stderr
    total = json.loads(played.stdout)["total"]
    assert total["prefilled"] == total["prompt_tokens"] > 5 * total["least"]
    assert shown.returncode == 0
    assert "left out: no --restart-command" in shown.stdout
    assert "MISSED" in shown.stdout


def test_a_refusal_is_told(cli: Cli) -> None:
    assert cli("up", "--max-context", "512").returncode == 0
    refused = replay(cli, str(cli.client().base_url).removesuffix("/v1"), "--scale", "0.2")
    assert refused.returncode == 2
    assert "context_length_exceeded" in refused.stderr
