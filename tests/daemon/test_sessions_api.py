"""Sessions over HTTP, with the real worker of the reference model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
from agentserve.daemon.paths import Paths
from agentserve.daemon.store.registry import ModelStore

SYSTEM = {"role": "system", "content": "You are a careful agent with many rules. " * 10}
Serve = Callable[..., Any]
WRONG: list[tuple[str, Any, tuple[int, str, str | None]]] = [
    ("/mine/truncate", {"tokens": 0}, (400, "invalid_value", "tokens")),
    ("/mine/truncate", {"tokens": -1}, (400, "invalid_value", "tokens")),
    ("/mine/truncate", {"tokens": 10**6}, (400, "invalid_value", "tokens")),
    ("/mine/truncate", {"drop_turns": 9}, (400, "invalid_value", "drop_turns")),
    ("/mine/truncate", {}, (400, "invalid_value", "tokens")),
    ("/mine/truncate", {"tokens": 1, "drop_turns": 1}, (400, "invalid_value", "tokens")),
    ("/mine/truncate", {"tokens": "many"}, (400, "invalid_json", None)),
    ("/mine/fork", {"session_id": "mine"}, (409, "session_exists", "session_id")),
    ("/mine/fork", {"session_id": "a/b"}, (400, "invalid_session_id", "session_id")),
    ("/none/fork", {}, (404, "session_not_found", "id")),
    ("/none/truncate", {"tokens": 1}, (404, "session_not_found", "id")),
]


def chat(live: Any, *turns: str, **fields: Any) -> dict[str, Any]:
    messages = [SYSTEM, *({"role": ("user", "assistant")[i % 2], "content": t} for i, t in enumerate(turns))]
    body = {"model": "reference", "messages": messages, "max_tokens": 5, "temperature": 0, **fields}
    answer = httpx.post(f"{live.url}/v1/chat/completions", json=body, timeout=30)
    assert answer.status_code == 200, answer.text
    return answer.json()


def call(live: Any, method: str, path: str = "", body: Any = None, **query: str) -> httpx.Response:
    url = f"{live.url}/agentserve/v1/sessions{path}"
    return httpx.request(method, url, json=body, params=query, timeout=30)


def code(response: httpx.Response) -> tuple[int, str, str | None]:
    error = response.json()["error"]
    return response.status_code, error["code"], error["param"]


def test_a_session_is_listed_shown_and_forgotten(serve: Serve) -> None:
    live = serve()
    assert call(live, "GET").json() == {"sessions": []}
    said = chat(live, "one", agentserve_session_id="mine")
    (listed,) = call(live, "GET").json()["sessions"]
    assert (listed["id"], listed["model"], listed["salted"]) == ("mine", "reference", False)
    assert listed["tokens"] == said["usage"]["total_tokens"] - 1
    assert (listed["tier"], listed["last_action"], listed["hits"]) == ("pool", "rebuild", 0)
    assert call(live, "GET", "/mine").json() == listed
    gone = call(live, "DELETE", "/mine")
    assert (gone.status_code, gone.json()["deleted"]) == (200, True)
    assert code(call(live, "DELETE", "/mine")) == (404, "session_not_found", "id")
    # What was computed is still known.
    assert chat(live, "one")["agentserve"]["cached_tokens"] > 300


def test_a_fork_is_continued_by_its_name_and_leaves_the_other_alone(serve: Serve) -> None:
    live = serve()
    first = chat(live, "one", agentserve_session_id="trunk")["choices"][0]["message"]["content"]
    made = call(live, "POST", "/trunk/fork", {"session_id": "branch"})
    trunk = call(live, "GET", "/trunk").json()
    assert made.status_code == 201
    assert (made.json()["id"], made.json()["tokens"]) == ("branch", trunk["tokens"])
    block = chat(live, "one", first, "two", agentserve_session_id="branch")["agentserve"]
    assert (block["session_id"], block["prefix_action"]) == ("branch", "append")
    assert call(live, "GET", "/trunk").json() == trunk
    other = call(live, "POST", "/trunk/fork").json()["id"]
    assert {one["id"] for one in call(live, "GET").json()["sessions"]} == {"trunk", "branch", other}


def test_a_session_is_cut_to_tokens_or_by_turns(serve: Serve) -> None:
    live = serve()
    first = chat(live, "one", agentserve_session_id="mine")["choices"][0]["message"]["content"]
    chat(live, "one", first, "two", agentserve_session_id="mine")
    before = call(live, "GET", "/mine").json()
    cut = call(live, "POST", "/mine/truncate", {"drop_turns": 1}).json()
    assert (cut["turns"], cut["last_action"]) == (before["turns"] - 1, "truncate")
    assert call(live, "POST", "/mine/truncate", {"tokens": 100}).json()["tokens"] == 100
    assert call(live, "GET", "/mine").json()["tokens"] == 100


def test_a_wrong_wish_is_refused_by_name_and_changes_nothing(serve: Serve) -> None:
    live = serve()
    chat(live, "one", agentserve_session_id="mine")
    before = call(live, "GET").json()
    for path, body, expected in WRONG:
        assert code(call(live, "POST", path, body)) == expected, (path, body)
    assert call(live, "GET").json() == before


def test_a_salt_keeps_sessions_apart_and_is_not_told(serve: Serve) -> None:
    live = serve()
    chat(live, "one", agentserve_session_id="mine", cache_salt="secret")
    assert code(call(live, "GET", "/mine")) == (404, "session_not_found", "id")
    assert call(live, "GET", "/mine", salt="secret").json()["salted"] is True
    assert "secret" not in call(live, "GET").text
    assert call(live, "GET", salt="other").json() == {"sessions": []}


def test_a_name_that_two_models_have_asks_for_the_model(
    serve: Serve, fake: Callable[..., Any], put: Callable[..., None], paths: Paths
) -> None:
    store = ModelStore(paths.models)
    for name in ("a", "b"):
        put(store, name, name.encode())
    live = serve(command=fake(), mock=False, model="a")
    assert call(live, "GET", "/mine").json()["model"] == "a:latest"
    httpx.post(f"{live.url}/v1/chat/completions", json={"model": "b", "messages": [SYSTEM]}, timeout=30)
    assert [one["model"] for one in call(live, "GET").json()["sessions"]] == ["a:latest", "b:latest"]
    assert code(call(live, "GET", "/mine")) == (409, "session_ambiguous", "model")
    assert call(live, "GET", "/mine", model="b").json()["model"] == "b:latest"


def test_a_model_that_does_not_exist_has_no_sessions(serve: Serve) -> None:
    live = serve()
    assert call(live, "GET", model="none").status_code == 404
    assert call(live, "GET", model="reference").status_code == 200


def test_the_older_spellings_of_fields_are_understood(serve: Serve) -> None:
    live = serve()
    chat(live, "one", flashrt_session_id="mine", flashrt_cache_salt="salt")
    assert call(live, "GET", "/mine", salt="salt").status_code == 200
    chat(live, "one", flashrt_session_id="old", agentserve_session_id="new")
    assert [one["id"] for one in call(live, "GET", salt="").json()["sessions"]] == ["new"]


def test_on_request_the_two_differing_texts_are_told_and_nowhere_logged(serve: Serve, caplog: Any) -> None:
    live = serve()
    chat(live, "the first question")
    block = chat(live, "the second question", agentserve_explain=True)["agentserve"]
    assert block["difference"]["position"] == block["first_difference"]
    assert block["difference"]["known"].startswith("first question")
    assert block["difference"]["prompt"].startswith("second question")
    assert block["difference"]["shared"].endswith("the ")
    assert "difference" not in chat(live, "the third question")["agentserve"]
    assert "first question" not in caplog.text
