"""pin, pins and unpin against a daemon with the reference model."""

from __future__ import annotations

import json
from pathlib import Path

from cli_process import Cli


def test_pin_pins_show_and_unpin(cli: Cli, tmp_path: Path) -> None:
    rules = tmp_path / "rules.json"
    rules.write_text(json.dumps([{"role": "system", "content": "Be careful. " * 30}]))
    assert cli("up").returncode == 0
    made = cli("pin", "rules", "--messages", str(rules))
    assert made.returncode == 0, made.stderr
    assert "rules is pinned: " in made.stderr
    assert "computed now" in made.stderr
    listed = cli("pins").stdout.splitlines()
    assert listed[0].split() == ["NAME", "TOKENS", "SIZE", "TIER", "HITS", "LAST", "USED", "MODEL"]
    assert listed[1].startswith("rules ")
    assert json.loads(cli("pins", "--json").stdout)["pins"][0]["name"] == "rules"
    assert "tier" in cli("pins", "show", "rules").stdout
    assert cli("restart").returncode == 0
    assert " disk " in cli("pins").stdout
    assert "rules is not pinned any more" in cli("unpin", "rules").stderr
    assert cli("pins").stdout == ""
    missing = cli("unpin", "rules")
    assert (missing.returncode, "There is no pin 'rules'" in missing.stderr) == (1, True)


def test_what_can_t_be_pinned_is_said_before_the_daemon_is_asked(cli: Cli, tmp_path: Path) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text("[")
    assert "is not valid JSON" in cli("pin", "a", "--messages", str(broken)).stderr
    assert "exclude each other" in cli("pin", "a", "--text", str(broken), "--from", "x").stderr
    assert cli("pins").returncode == 3
