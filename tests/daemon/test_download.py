"""Downloads against a real server that breaks off, ignores ranges and sends wrong answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from agentserve.daemon.errors import PullError
from agentserve.daemon.store.download import Download, fetch
from agentserve.daemon.store.pull_progress import PullProgress, PullStage
from agentserve.daemon.store.wheel_source import PipConfig
from package_index import PackageIndex, point_pip_at, serve_index

BODY = bytes(range(256)) * 4000


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[PackageIndex]:
    point_pip_at(monkeypatch)
    with serve_index(PackageIndex(BODY)) as served:
        yield served


def run(index: PackageIndex, target: Path, delays_s: tuple[float, ...] = ()) -> list[PullProgress]:
    seen: list[PullProgress] = []
    fetch(Download(index.file_url, target, len(BODY)), PipConfig(), seen.append, delays_s)
    return seen


def test_a_file_arrives_whole_with_its_progress_in_bytes(index: PackageIndex, tmp_path: Path) -> None:
    seen = run(index, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == BODY
    done = [report.done for report in seen]
    assert done == sorted(done)
    assert (done[0], done[-1]) == (0, len(BODY))
    assert {(report.stage, report.total) for report in seen} == {(PullStage.DOWNLOADING, len(BODY))}


def test_a_partial_file_is_continued_where_it_ends(index: PackageIndex, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(BODY[:1000])
    seen = run(index, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == BODY
    assert index.asked_ranges == ["bytes=1000-"]
    assert seen[0].done == 1000


def test_a_complete_file_is_not_asked_for_again(index: PackageIndex, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(BODY)
    assert run(index, tmp_path / "file") == []
    assert index.asked_ranges == []


def test_a_file_that_is_too_long_is_started_anew(index: PackageIndex, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(BODY + b"more")
    run(index, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == BODY


def test_a_server_without_ranges_sends_the_file_from_the_start(index: PackageIndex, tmp_path: Path) -> None:
    index.ranges = False
    (tmp_path / "file").write_bytes(b"x" * 1000)
    run(index, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == BODY


def test_a_dropped_connection_is_taken_up_again_by_itself(index: PackageIndex, tmp_path: Path) -> None:
    index.cuts = [300_000, 200_000]
    seen = run(index, tmp_path / "file", (0.0,))
    assert (tmp_path / "file").read_bytes() == BODY
    assert index.asked_ranges[0] is None
    assert len(index.asked_ranges) == 3, "one wait suffices for two drops, as each attempt brought bytes"
    assert [r.stage for r in seen].count(PullStage.RETRYING) == 2


def test_a_server_that_stays_away_is_given_up_and_the_bytes_are_kept(
    index: PackageIndex, tmp_path: Path
) -> None:
    index.cuts, index.statuses = [300_000], []
    with pytest.raises(PullError, match=r"given up: .*run it again to go on"):
        run(index, tmp_path / "file")
    kept = (tmp_path / "file").stat().st_size
    assert 0 < kept <= 300_000
    run(index, tmp_path / "file")
    assert index.asked_ranges[-1] == f"bytes={kept}-"
    assert (tmp_path / "file").read_bytes() == BODY


def test_a_busy_server_is_asked_again(index: PackageIndex, tmp_path: Path) -> None:
    index.statuses = [503, 429]
    run(index, tmp_path / "file", (0.0, 0.0))
    assert (tmp_path / "file").read_bytes() == BODY


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_refusal_is_final_and_names_host_and_status(
    index: PackageIndex, tmp_path: Path, status: int
) -> None:
    index.statuses = [status]
    with pytest.raises(PullError, match=rf"127\.0\.0\.1 answered {status}"):
        run(index, tmp_path / "file", (0.0, 0.0))
    assert len(index.asked_ranges) == 1


def test_a_range_that_the_server_does_not_have_starts_the_file_anew(
    index: PackageIndex, tmp_path: Path
) -> None:
    index.statuses = [416]
    (tmp_path / "file").write_bytes(b"x" * 1000)
    run(index, tmp_path / "file", (0.0,))
    assert (tmp_path / "file").read_bytes() == BODY


def test_a_file_of_another_size_is_refused_with_both_sizes(index: PackageIndex, tmp_path: Path) -> None:
    index.wheel = BODY + b"more"
    with pytest.raises(PullError, match=rf"of {len(BODY) + 4} bytes, expected {len(BODY)}"):
        run(index, tmp_path / "file")
    assert not (tmp_path / "file").exists()


def test_nobody_listening_is_a_pull_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    point_pip_at(monkeypatch)
    with serve_index(PackageIndex(BODY)) as gone:
        pass
    with pytest.raises(PullError, match="given up"):
        run(gone, tmp_path / "file")


def test_the_password_of_an_index_goes_to_its_host_only() -> None:
    config = PipConfig(indexes=("https://me:s%40cret@mirror.example/simple", "https://open.example/simple"))
    assert config.credentials("https://mirror.example/files/x.whl") == ("me", "s@cret")
    assert config.credentials("https://open.example/files/x.whl") is None
    assert config.credentials("https://elsewhere.example/x.whl") is None


def test_a_missing_certificate_file_is_named(tmp_path: Path) -> None:
    job = Download("https://127.0.0.1:1/x", tmp_path / "file", 1)
    with pytest.raises(PullError, match=r"pip's certificate file .*nowhere\.pem can't be read"):
        fetch(job, PipConfig(cert=str(tmp_path / "nowhere.pem")), lambda _progress: None)
