from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from agentserve.daemon.errors import ModelNotFound, QueueFull, Unavailable
from agentserve.daemon.store.registry import ModelStore
from agentserve.daemon.workers.lifecycle import State
from agentserve.daemon.workers.process import Command
from agentserve.daemon.workers.router import Router, Slot, Target, canonical_name, choose_victim
from router_rig import routed

Fake = Callable[..., Command]
Put = Callable[[ModelStore, str, bytes], None]
StoreWith = Callable[..., ModelStore]


def slot(name: str, holders: int = 0, last_used: float = 0.0, wait_s: float = 0.0) -> Slot:
    return Slot(Target(name, "", None), holders, last_used, wait_s)


def test_nothing_is_stopped_while_there_is_room() -> None:
    assert choose_victim([], 1) is None
    assert choose_victim([slot("a", 3)], 2) is None


def test_the_least_recently_used_idle_model_is_stopped() -> None:
    slots = [slot("a", 0, 3.0), slot("b", 0, 2.0), slot("c", 1, 1.0)]
    victim = choose_victim(slots, 3)
    assert victim is not None
    assert victim.name == "b"


def test_nothing_is_stopped_when_all_are_busy_and_the_numbers_are_told() -> None:
    with pytest.raises(Unavailable, match="All 2 loaded models are busy and no more than 2") as caught:
        choose_victim([slot("a", 1, wait_s=20.0), slot("b", 2, wait_s=7.2)], 2)
    # In so many seconds the first of them has nothing to do any more.
    assert (caught.value.code, caught.value.retry_after) == ("device_busy", 8)


@pytest.mark.parametrize(
    ("name", "canonical"),
    [("mini", "small"), ("mini:latest", "small"), ("tagged:latest", "t"), ("other", "other")],
)
def test_aliases_are_applied_with_or_without_the_latest_tag(name: str, canonical: str) -> None:
    assert canonical_name(name, {"mini": "small", "tagged:latest": "t", "small": "loop"}) == canonical


@pytest.fixture
def store_with(tmp_path: Path, put: Put) -> Callable[..., ModelStore]:
    def make(*names: str) -> ModelStore:
        store = ModelStore(tmp_path / "models")
        for name in names:
            put(store, name, name.encode())
        return store

    return make


def test_the_requested_model_is_the_one_that_is_loaded(store_with: StoreWith, fake: Fake) -> None:
    async def scenario(router: Router) -> None:
        for name, loaded in (("a", "a:latest"), ("b:7b", "b:7b"), ("a:latest", "a:latest"), ("gpt", "b:7b")):
            async with router.hold(name) as worker:
                assert (await router.ready(worker)).name == loaded
        assert [one.load.name for one in router.supervisors()] == ["a:latest", "b:7b"]
        paths = {one.load.model_path for one in router.supervisors()}
        assert len(paths) == 2

    routed(scenario, store_with("a", "b:7b"), fake(), aliases={"gpt": "b:7b"})


@pytest.mark.parametrize("name", ["smollm2", "nope", "openai/gpt-5", "../../etc/passwd", "b"])
def test_an_unknown_model_is_not_found_and_no_other_is_run(
    store_with: StoreWith, fake: Fake, name: str
) -> None:
    async def scenario(router: Router) -> None:
        with pytest.raises(ModelNotFound) as caught:
            await router.resolve(name)
        assert (caught.value.status, caught.value.code, caught.value.param) == (
            404,
            "model_not_found",
            "model",
        )
        assert str(router.store.root) not in caught.value.message

    routed(scenario, store_with("a", "b:7b"), fake())


def test_an_unknown_model_is_mapped_to_the_default_where_the_settings_say_so(
    store_with: StoreWith, fake: Fake
) -> None:
    async def scenario(router: Router) -> None:
        for name in ("gpt-5-mini", "../../etc/passwd", "claude-haiku"):
            assert (await router.resolve(name)).name == "b:latest"
        assert (await router.resolve("text-embedding-3-small", "embedding")).name == "a:latest"
        assert (await router.resolve("a")).name == "a:latest"
        with pytest.raises(ModelNotFound, match="gpt-5-mini"):
            await router.find("gpt-5-mini")

    routed(scenario, store_with("a", "b"), fake(), model="b", embedding_model="a", unknown_model="default")


def test_a_default_that_is_not_there_either_is_an_error(store_with: StoreWith, fake: Fake) -> None:
    async def scenario(router: Router) -> None:
        with pytest.raises(ModelNotFound, match="'gone'"):
            await router.resolve("gpt-5-mini")

    routed(scenario, store_with("a"), fake(), model="gone", unknown_model="default")


def test_a_model_that_could_be_pulled_is_named_with_the_command(store_with: StoreWith, fake: Fake) -> None:
    async def scenario(router: Router) -> None:
        with pytest.raises(ModelNotFound, match="`agentserve pull smollm2`"):
            await router.resolve("smollm2")

    routed(scenario, store_with(), fake())


def test_a_third_model_takes_the_place_of_the_least_recently_used(store_with: StoreWith, fake: Fake) -> None:
    async def scenario(router: Router) -> None:
        workers = {}
        for name in ("a", "b", "a", "c"):
            async with router.hold(name) as worker:
                await router.ready(worker)
                workers[name] = worker
        assert [one.load.name for one in router.supervisors()] == ["a:latest", "c:latest"]
        assert workers["b"].state is State.STOPPED
        assert workers["a"].state is State.READY

    routed(scenario, store_with("a", "b", "c"), fake(), max_loaded_models=2)


def test_a_held_model_is_never_stopped_for_another(store_with: StoreWith, fake: Fake) -> None:
    async def scenario(router: Router) -> None:
        async with router.hold("a") as worker:
            await router.ready(worker)
            with pytest.raises(Unavailable, match="busy"):
                async with router.hold("b"):
                    pass
            assert worker.state is State.READY
        async with router.hold("b") as other:
            assert (await router.ready(other)).name == "b:latest"

    routed(scenario, store_with("a", "b"), fake(), max_loaded_models=1)


def test_a_name_that_means_another_file_now_is_loaded_anew(
    store_with: StoreWith, fake: Fake, put: Put
) -> None:
    store = store_with("a")

    async def scenario(router: Router) -> None:
        async with router.hold("a") as before:
            await router.ready(before)
        store.remove("a")
        put(store, "a", b"other weights")
        async with router.hold("a") as after:
            await router.ready(after)
        assert after is not before
        assert after.load.model_path != before.load.model_path

    routed(scenario, store, fake())


def test_a_full_queue_is_refused_before_anything_is_loaded(store_with: StoreWith, fake: Fake) -> None:
    async def scenario(router: Router) -> None:
        async with AsyncExitStack() as holding:
            for _ in range(3):
                await holding.enter_async_context(router.hold("a"))
            with pytest.raises(QueueFull, match=r"2 requests are waiting .*\(max_queue_depth 2\)") as caught:
                await holding.enter_async_context(router.hold("a"))
            # Nothing was measured yet.
            assert (caught.value.status, caught.value.retry_after) == (429, 1)
            assert router.supervisors()[0].state is State.STOPPED
        async with router.hold("a"):
            pass

    routed(scenario, store_with("a"), fake(), max_queue_depth=2)


def test_a_client_is_told_to_come_back_while_a_model_loads(store_with: StoreWith, fake: Fake) -> None:
    async def scenario(router: Router) -> None:
        async with router.hold("a") as worker:
            with pytest.raises(Unavailable, match="a:latest is still loading") as caught:
                await router.ready(worker, patience=0.05)
            # As long again as it has taken.
            assert (caught.value.code, caught.value.retry_after) == ("model_loading", 1)
            assert (await router.ready(worker)).name == "a:latest"

    routed(scenario, store_with("a"), fake("--slow-load", "0.3"))


def test_a_closed_router_takes_nothing_up(store_with: StoreWith, fake: Fake) -> None:
    async def scenario(router: Router) -> None:
        async with router.hold("a") as worker:
            await router.ready(worker)
        await router.stop()
        with pytest.raises(Unavailable, match="shutting down") as caught:
            async with router.hold("a"):
                pass
        assert caught.value.code == "shutting_down"
        assert worker.state is State.STOPPED

    routed(scenario, store_with("a"), fake())


def test_the_settings_reach_the_worker(store_with: StoreWith, fake: Fake) -> None:
    async def scenario(router: Router) -> None:
        async with router.hold("a") as worker:
            load = worker.load
        assert (load.device, load.threads, load.max_context) == ("GPU.1", 3, 99)
        assert (load.kv_budget_bytes, load.exact, load.reference_step_s) == (5000, True, 0.5)

    settings = {"threads": 3, "max_context": 99, "kv_budget": 5000, "exact": True, "reference_step": 0.5}
    routed(scenario, store_with("a"), fake(), device="GPU.1", **settings)


def test_mock_serves_the_reference_model_alone(store_with: StoreWith, fake: Fake) -> None:
    async def scenario(router: Router) -> None:
        assert router.default_model == "reference"
        assert (await router.resolve("reference:latest")).path is None
        async with router.hold("reference") as worker:
            assert (worker.load.device, worker.load.model_path) == ("mock", None)
        with pytest.raises(ModelNotFound, match="serves only 'reference'"):
            await router.resolve("a")

    routed(scenario, store_with("a"), fake(), mock=True)


def test_a_model_that_failed_to_load_takes_no_room(store_with: StoreWith, fake: Fake) -> None:
    async def scenario(router: Router) -> None:
        async with router.hold("a") as broken:
            with pytest.raises(Unavailable):
                await router.ready(broken)
        async with router.hold("b") as other:
            assert broken.state is State.FAILED
            assert [one.load.name for one in router.supervisors()] == ["a:latest", "b:latest"]
            with pytest.raises(Unavailable, match="busy"):
                async with router.hold("a"):
                    pass
        assert other.load.name == "b:latest"

    routed(scenario, store_with("a", "b"), fake("--fail-load", "corrupt_model"), max_loaded_models=1)
