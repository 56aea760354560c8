"""sessions against a daemon with the reference model."""

from __future__ import annotations

import json

import httpx
from cli_process import Cli


def test_sessions_are_listed_shown_forked_cut_and_forgotten(cli: Cli) -> None:
    assert cli("up").returncode == 0
    assert "No sessions yet" in cli("sessions").stderr
    messages = [{"role": "user", "content": "a question " * 20}]
    body = {"model": "reference", "messages": messages, "max_tokens": 4, "agentserve_session_id": "mine"}
    httpx.post(f"{cli.client().base_url}/chat/completions", json=body, timeout=30).raise_for_status()
    heads, row = cli("sessions").stdout.splitlines()
    assert heads.split() == [
        "ID",
        "TOKENS",
        "SIZE",
        "TIER",
        "HITS",
        "LAST",
        "ACTION",
        "LAST",
        "USED",
        "MODEL",
    ]
    assert row.startswith("mine ")
    assert json.loads(cli("sessions", "--json").stdout)["sessions"][0]["id"] == "mine"
    shown = cli("sessions", "show", "mine").stdout
    assert "last action  rebuild" in shown
    assert " 0 known turns" not in shown
    named = cli("sessions", "fork", "mine", "--as", "branch")
    assert (named.stdout, "was forked at" in named.stderr) == ("branch\n", True)
    other = cli("sessions", "fork", "mine").stdout.strip()
    assert "100 tokens now" in cli("sessions", "truncate", "branch", "--tokens", "100").stderr
    assert json.loads(cli("sessions", "show", "branch", "--json").stdout)["tokens"] == 100
    assert "mine is forgotten" in cli("sessions", "rm", "mine").stderr
    left = json.loads(cli("sessions", "--json").stdout)["sessions"]
    assert {one["id"] for one in left} == {"branch", other}
    missing = cli("sessions", "rm", "mine")
    assert (missing.returncode, "There is no session 'mine'" in missing.stderr) == (1, True)


def test_a_wrong_cut_is_said_before_the_daemon_is_asked(cli: Cli) -> None:
    assert "either --tokens or --drop-turns" in cli("sessions", "truncate", "mine").stderr
    assert cli("sessions", "truncate", "mine", "--tokens", "0").returncode == 2
    assert cli("sessions").returncode == 3
