"""Pins and the disk tier on the reference model, which has KV and recurrent state."""

from __future__ import annotations

import errno
import shutil
import threading
from pathlib import Path

import pytest
from agentserve.engine.capsules.capsule import Capsule
from agentserve.engine.capsules.files import CapsuleFile, Opened, read_header
from agentserve.engine.config import EngineConfig
from agentserve.engine.prompts.prompting import PromptError
from agentserve.engine.protocol import (
    GenerateRequest,
    ListPins,
    Message,
    Pin,
    PinList,
    PinRefused,
    Started,
    Unpin,
    Unpinned,
)
from agentserve.engine.runners.reference import ReferenceRunner
from agentserve.engine.runners.runner import KvGeometry
from capsule_rig import CapsuleRig
from engine_rig import chat

CONFIG = EngineConfig(context_length=2048, exact=True)


def rig(folder: Path | None = None, **fields: object) -> CapsuleRig:
    base = {"config": CONFIG, "blocks": 200, "endless": True, "folder": folder}
    return CapsuleRig(**{**base, **fields})  # type: ignore[arg-type]


def cold(messages: tuple[Message, ...]) -> str:
    fresh = rig()
    fresh.ask("cold", messages)
    return fresh.text("cold")


def of(messages: tuple[Message, ...]) -> GenerateRequest:
    return GenerateRequest("", messages)


def files(folder: Path, kind: str = "") -> list[Path]:
    return sorted(folder.glob(f"{kind}*.safetensors"))


def computed(engine: CapsuleRig) -> int:
    return engine.engine.tokens_prefilled


# ---- restart


def test_after_a_restart_the_next_turn_is_restored_and_computes_only_what_is_new(tmp_path: Path) -> None:
    first = rig(tmp_path)
    first.ask("a", chat("one"))
    following = chat("one", first.text("a"), "two")
    second = first.restarted()
    started = second.ask("b", following)
    assert started.prefix_action == "restore"
    assert started.cached_tokens + computed(second) == second.finished("b").prompt_tokens
    assert computed(second) < 40
    assert second.text("b") == cold(following)


def test_what_was_restored_is_in_the_pool_for_everybody(tmp_path: Path) -> None:
    first = rig(tmp_path)
    first.ask("a", chat("one"))
    second = first.restarted()
    second.ask("b", chat("one"))
    assert second.ask("c", chat("one")).prefix_action != "restore"
    assert second.text("b") == second.text("c") == first.text("a")


def test_a_second_turn_writes_only_its_new_blocks(tmp_path: Path) -> None:
    engine = rig(tmp_path)
    engine.ask("a", chat("one"))
    (whole,) = files(tmp_path)
    engine.ask("b", chat("one", engine.text("a"), "two " * 30))
    (more,) = set(files(tmp_path)) - {whole}
    # The blocks from the one on that was the tail of the first turn.
    assert read_header(more).capsule.first == read_header(whole).capsule.blocks * 32 - 32
    started = engine.restarted().ask(
        "c", chat("one", engine.text("a"), "two " * 30, engine.text("b"), "three")
    )
    assert started.cached_tokens > 440


def test_nothing_is_restored_across_namespaces(tmp_path: Path) -> None:
    first = rig(tmp_path)
    first.ask("a", chat("one"), namespace="alice")
    second = first.restarted()
    started = second.ask("b", chat("one"), namespace="bob")
    assert (started.prefix_action, started.cache_miss_reason) == ("rebuild", "cold")
    assert second.ask("c", chat("one"), namespace="alice").prefix_action == "restore"


def test_another_fingerprint_restores_nothing(tmp_path: Path) -> None:
    first = rig(tmp_path)
    first.ask("a", chat("one"))
    second = first.restarted(fingerprint="another")
    assert second.ask("b", chat("one")).prefix_action == "rebuild"
    # The one before finds its own still there.
    assert first.restarted().ask("c", chat("one")).prefix_action == "restore"


def test_blocks_that_the_pool_lost_come_back_from_the_disk(tmp_path: Path) -> None:
    engine = rig(tmp_path, blocks=40)
    engine.ask("a", chat("first " * 40), max_new_tokens=4)
    for number in range(6):
        engine.ask(f"b{number}", (Message("user", f"{number} other " * 60),), max_new_tokens=4)
    before = computed(engine)
    started = engine.ask("c", chat("first " * 40), max_new_tokens=4)
    assert started.prefix_action == "restore"
    assert computed(engine) - before == 1
    assert engine.text("c") == engine.text("a")


def test_a_restart_in_the_middle_of_a_write_leaves_nothing_half(tmp_path: Path) -> None:
    engine = rig(tmp_path)
    engine.ask("a", chat("one"))
    (stored,) = files(tmp_path)
    half = tmp_path / f"{stored.name}.part"
    half.write_bytes(stored.read_bytes()[:5000])
    assert engine.restarted().ask("b", chat("one")).prefix_action == "restore"
    assert not half.exists()


# ---- damage


@pytest.mark.parametrize("place", ["header", "first block", "middle", "state"])
def test_a_flipped_byte_gives_no_wrong_answer(tmp_path: Path, place: str) -> None:
    first = rig(tmp_path)
    first.ask("a", chat("one"))
    (stored,) = files(tmp_path)
    opened = read_header(stored)
    prompt, row = first.finished("a").prompt_tokens, opened.capsule.geometry.state_bytes
    blocks_end = opened.capsule.blocks * opened.capsule.geometry.block_bytes
    at = {
        "header": 200,
        "first block": opened.data_start + 40,
        "middle": opened.data_start + 5 * opened.capsule.geometry.block_bytes + 8,
        "state": opened.data_start + blocks_end + opened.capsule.states.index(prompt - 1) * row + 4,
    }[place]
    data = bytearray(stored.read_bytes())
    data[at] ^= 0x10
    stored.write_bytes(data)
    second = first.restarted()
    second.ask("b", chat("one"))
    assert second.text("b") == first.text("a")
    assert not stored.exists()


@pytest.mark.parametrize("length", [0, 5, 300, 20_000])
def test_a_truncated_file_is_skipped(tmp_path: Path, length: int) -> None:
    first = rig(tmp_path)
    first.ask("a", chat("one"))
    (stored,) = files(tmp_path)
    stored.write_bytes(stored.read_bytes()[:length])
    second = first.restarted()
    assert second.ask("b", chat("one")).prefix_action == "rebuild"
    assert second.text("b") == first.text("a")


def test_a_file_that_vanishes_under_a_running_engine_is_no_error(tmp_path: Path) -> None:
    first = rig(tmp_path)
    first.ask("a", chat("one"))
    second = first.restarted()
    files(tmp_path)[0].unlink()
    assert second.ask("b", chat("one")).prefix_action == "rebuild"
    assert second.text("b") == first.text("a")


def test_a_full_disk_costs_the_capsule_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(self: CapsuleFile, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(CapsuleFile, "add", full)
    engine = rig(tmp_path)
    engine.ask("a", chat("one"))
    assert list(tmp_path.iterdir()) == []
    assert [record.message.endswith("No space left on device") for record in caplog.records] == [True]
    assert engine.text("a") == cold(chat("one"))


def test_the_disk_budget_is_kept_and_the_oldest_goes_first(tmp_path: Path) -> None:
    engine = rig(tmp_path, disk_bytes=320_000)
    for number in range(8):
        engine.ask(f"r{number}", (Message("user", f"{number} question " * 20),))
        assert sum(path.stat().st_size for path in files(tmp_path)) <= 320_000
    again = engine.restarted()
    assert again.ask("new", (Message("user", "7 question " * 20),)).prefix_action == "restore"
    assert again.ask("old", (Message("user", "0 question " * 20),)).prefix_action != "restore"


def test_a_capsule_file_is_read_by_the_format_s_own_library(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.numpy")
    engine = rig(tmp_path)
    engine.ask("a", chat("one"))
    (stored,) = files(tmp_path)
    capsule = read_header(stored).capsule
    tensors = safetensors.load_file(stored)
    assert tensors["blocks"].shape == (capsule.blocks, capsule.geometry.block_bytes)
    assert tensors["states"].shape == (len(capsule.states), capsule.geometry.state_bytes)


# ---- in the background


def test_a_disk_that_hangs_stops_no_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    released, add = threading.Event(), CapsuleFile.add

    def hang(self: CapsuleFile, data: bytes) -> None:
        assert released.wait(30)
        add(self, data)

    monkeypatch.setattr(CapsuleFile, "add", hang)
    engine = rig(tmp_path)
    for name in ("a", "b"):
        engine.submit(name, messages=chat(name))
        engine.run()
        assert engine.finished(name).finish_reason == "length"
    assert files(tmp_path) == []
    released.set()
    engine.settle()
    assert engine.restarted().ask("c", chat("b")).prefix_action == "restore"


def test_what_is_on_its_way_to_the_disk_is_not_written_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    released, finish = threading.Event(), CapsuleFile.finish

    def hang(self: CapsuleFile, capsule: Capsule) -> Opened:
        assert released.wait(30)
        return finish(self, capsule)

    monkeypatch.setattr(CapsuleFile, "finish", hang)
    engine = rig(tmp_path)
    engine.submit("a", messages=chat("one"))
    engine.run()
    engine.submit("b", messages=chat("two " * 30))
    engine.run()
    released.set()
    engine.settle()
    first, second = (read_header(path).capsule for path in files(tmp_path))
    assert (first.first, second.first >= 288) == (0, True)


def test_a_step_copies_one_block_at_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copies: list[int] = []
    read = ReferenceRunner.read_block

    def count(self: ReferenceRunner, block: int) -> bytes:
        copies.append(block)
        return read(self, block)

    monkeypatch.setattr(ReferenceRunner, "read_block", count)
    engine = rig(tmp_path)
    engine.ask("a", chat("one"))
    engine.submit("b", messages=chat("two " * 50))
    copies.clear()
    for _ in range(60):
        before = len(copies)
        engine.engine.step()
        assert len(copies) <= before + 1
    engine.settle()
    assert copies


# ---- pins


def test_a_pin_is_never_evicted() -> None:
    engine = rig(blocks=40)
    pinned = engine.pin(Pin("p", "prefix", request=of(chat()))).pin
    for number in range(8):
        engine.ask(f"b{number}", (Message("user", f"{number} other " * 60),), max_new_tokens=4)
    before = computed(engine)
    started = engine.ask("c", chat("question"), max_new_tokens=4)
    assert started.cached_tokens >= pinned.tokens
    assert computed(engine) - before < 64
    assert engine.pins().pins[0].hits == 1


def test_a_pin_is_cut_to_whole_blocks_and_says_what_it_takes() -> None:
    engine = rig()
    done = engine.pin(Pin("p", "prefix", request=of(chat("x")), tokens=100))
    geometry: KvGeometry = engine.runner.geometry
    assert (done.pin.tokens, done.pin.tier, done.replaced) == (96, "pool", False)
    assert done.pin.bytes == 3 * geometry.block_bytes + geometry.state_bytes
    listed = engine.pins()
    assert (listed.used_bytes, listed.pins) == (done.pin.bytes, (done.pin,))


def test_the_stable_prefix_is_what_the_last_requests_have_in_common() -> None:
    engine = rig()
    engine.ask("a", chat("one question"))
    alone = engine.pin(Pin("p", "system"))
    assert alone.pin.tokens == 9 * 32
    engine.ask("b", chat("one question", engine.text("a"), "two"))
    both = engine.pin(Pin("p", "system"))
    assert both.replaced
    assert both.pin.tokens > alone.pin.tokens
    assert len(engine.pins().pins) == 1


def test_pinning_a_request_by_its_id_computes_nothing() -> None:
    engine = rig()
    engine.ask("a", chat("one question"))
    before = computed(engine)
    done = engine.pin(Pin("p", "mine", from_request="a"))
    # Its end needs a state of its own; the whole blocks before it are there.
    assert done.cached_tokens >= done.pin.tokens - 32
    assert computed(engine) - before <= 32


def test_over_budget_says_wanted_and_free_and_changes_nothing() -> None:
    engine = rig(pin_bytes=10 * 8192)
    engine.pin(Pin("p", "small", request=of(chat("x")), tokens=64))
    used = engine.engine.cache.blocks.used
    refused = engine.pin(Pin("q", "large", request=of(chat("x" * 300))), PinRefused)
    assert (refused.status, refused.code) == (503, "capsule_over_budget")
    assert refused.wanted_bytes is not None
    assert refused.free_bytes is not None
    assert 0 < refused.free_bytes < refused.wanted_bytes
    assert engine.engine.cache.blocks.used == used
    assert [pin.name for pin in engine.pins().pins] == ["small"]


def test_without_a_budget_pins_are_refused_as_switched_off() -> None:
    refused = rig(pin_bytes=0).pin(Pin("q", "any", request=of(chat("x"))), PinRefused)
    assert (refused.status, refused.code) == (400, "capsules_disabled")


@pytest.mark.parametrize("name", ["", "-x", "a/b", "a" * 129, "ä", "a\n"])
def test_a_name_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(PromptError) as refused:
        rig().pin(Pin("p", name, request=of(chat("x"))))
    assert refused.value.code == "invalid_pin_name"


def test_unpinning_gives_the_blocks_and_the_file_back(tmp_path: Path) -> None:
    engine = rig(tmp_path)
    engine.pin(Pin("p", "prefix", request=of(chat("x"))))
    assert len(files(tmp_path, "pin-")) == 1
    gone = engine.ask_about(Unpin("u", "prefix"), Unpinned)
    assert gone.pin.name == "prefix"
    assert engine.engine.cache.blocks.used == 0
    assert files(tmp_path) == []
    assert engine.ask_about(Unpin("u", "prefix"), PinRefused).status == 404


def test_pins_of_another_namespace_are_not_listed() -> None:
    engine = rig()
    engine.pin(Pin("p", "prefix", "alice", of(chat("x"))))
    assert engine.ask_about(ListPins("l", "bob"), PinList).pins == ()
    assert len(engine.ask_about(ListPins("l", "alice"), PinList).pins) == 1


def test_a_pin_survives_a_restart_and_is_held_again_when_it_is_used(tmp_path: Path) -> None:
    first = rig(tmp_path)
    first.pin(Pin("p", "prefix", request=of(chat())))
    second = first.restarted()
    (pin,) = second.pins().pins
    assert (pin.tier, pin.on_disk, pin.name) == ("disk", True, "prefix")
    started = second.ask("a", chat("question"))
    assert (started.prefix_action, started.cached_tokens >= pin.tokens) == ("restore", True)
    assert second.pins().pins[0].tier == "pool"
    assert second.text("a") == cold(chat("question"))


def test_a_pin_of_another_fingerprint_is_computed_again_from_its_tokens(tmp_path: Path) -> None:
    first = rig(tmp_path)
    first.pin(Pin("p", "prefix", request=of(chat())))
    second = first.restarted(fingerprint="another")
    assert second.pins().pins[0].tier == "lost"
    started = second.ask("a", chat("question"))
    assert (started.prefix_action, started.cache_miss_reason) == ("rebuild", "fingerprint_mismatch")
    (pin,) = second.pins().pins
    assert (pin.tier, pin.on_disk) == ("pool", True)
    third = second.restarted()
    assert third.ask("b", chat("question")).prefix_action == "restore"


@pytest.mark.parametrize("keep", [0.5, 0.9])
def test_a_damaged_pin_is_computed_again_from_its_tokens(tmp_path: Path, keep: float) -> None:
    first = rig(tmp_path)
    first.pin(Pin("p", "prefix", request=of(chat())))
    (stored,) = files(tmp_path, "pin-")
    data = stored.read_bytes()
    stored.write_bytes(data[: int(len(data) * keep)])
    second = first.restarted()
    started: Started = second.ask("a", chat("question"))
    assert started.cache_miss_reason == "capsule_damaged"
    assert second.text("a") == cold(chat("question"))
    (pin,) = second.pins().pins
    assert (pin.tier, pin.on_disk) == ("pool", True)


def test_a_pin_expires(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    engine = rig(tmp_path)
    engine.pin(Pin("p", "prefix", request=of(chat("x")), ttl_s=60))
    (pin,) = engine.pins().pins
    assert pin.expires is not None
    later = pin.expires + 1
    monkeypatch.setattr("agentserve.engine.capsules.store.time.time", lambda: later)
    assert engine.restarted().pins().pins == ()
    assert engine.pins().pins == ()


def test_a_folder_that_is_removed_is_made_again_and_what_was_in_it_is_forgotten(tmp_path: Path) -> None:
    folder = tmp_path / "capsules"
    engine = rig(folder)
    engine.ask("a", chat("one"))
    assert engine.engine.capsules.tiers().disk > 0
    shutil.rmtree(folder)
    assert engine.engine.capsules.tiers().disk == 0
    engine.ask("b", chat("one", engine.text("a"), "two"))
    assert files(folder)
    following = chat("one", engine.text("a"), "two", engine.text("b"), "three")
    assert engine.restarted().ask("c", following).prefix_action == "restore"
