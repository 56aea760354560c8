"""The inspection process: one JSON object, exit codes, nothing heavy loaded."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from agentserve.engine.gguf.source import open_gguf
from agentserve.engine.inspect import quantization
from gguf.constants import GGMLQuantizationType as Q
from tiny_models import write_tiny_gguf


def inspected(path: Path, *further: str) -> tuple[int, dict[str, Any]]:
    command = [sys.executable, "-P", "-m", "agentserve.engine.inspect", str(path), *further]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""
    return done.returncode, json.loads(done.stdout)


def test_a_good_file_is_described(tmp_path: Path) -> None:
    tiny = write_tiny_gguf(tmp_path / "tiny.gguf", "qwen3", tensor_type=Q.Q4_1)
    code, facts = inspected(tiny.path)
    assert code == 0
    matrices = [value for value in tiny.state.values() if value.ndim == 2]
    assert facts == {
        "name": "tiny qwen3",
        "architecture": "qwen3",
        "parameters": sum(value.size for value in tiny.state.values()),
        "layers": 4,
        "context_length": 512,
        "vocab_size": 352,
        "quantization": "Q4_1",
        "tensor_types": {
            "Q4_1": {"count": len(matrices), "bytes": sum(value.size for value in matrices) // 32 * 20},
            "F32": {
                "count": len(tiny.state) - len(matrices),
                "bytes": 4 * sum(value.size for value in tiny.state.values() if value.ndim == 1),
            },
        },
        "schemes": {
            "Q4_1": "kept 4-bit, group 32, the minimum as a whole zero point and, by the setting `minima`, a 4-bit rest"
        },
        "has_chat_template": True,
        "license": "apache-2.0",
        "notes": [],
        "capabilities": ["completion"],
    }


@pytest.mark.parametrize(
    ("template", "skills"),
    [
        ("{{ '<tool_call>' }}", ["tools"]),
        ("{{ '</think>' }}", ["thinking"]),
        ("{{ '<tool_call></think>' }}", ["tools", "thinking"]),
        ("{{ '<|channel|>' }}", ["tools", "thinking"]),
    ],
)
def test_what_a_template_tells_of_is_a_capability(tmp_path: Path, template: str, skills: list[str]) -> None:
    tiny = write_tiny_gguf(tmp_path / "tiny.gguf", chat_template=template)
    assert inspected(tiny.path)[1]["capabilities"] == ["completion", *skills]


@pytest.mark.parametrize(
    ("changes", "code", "message"),
    [
        (
            {"metadata": {"llama.expert_count": 8}},
            "unsupported_model",
            "a mixture of experts is not supported",
        ),
        ({"pre": "kimi-k2"}, "unsupported_model", "the pre-tokenizer kimi-k2 is not supported"),
        ({"chat_template": "{% if %}"}, "unsupported_model", "the model's chat template can't be read"),
    ],
)
def test_a_bad_file_ends_with_1_and_its_error(
    tmp_path: Path, changes: dict[str, Any], code: str, message: str
) -> None:
    exit_code, facts = inspected(write_tiny_gguf(tmp_path / "tiny.gguf", **changes).path)
    assert exit_code == 1
    assert facts["error"]["code"] == code
    assert facts["error"]["message"].startswith(message)
    assert str(tmp_path) not in json.dumps(facts)


def test_the_mixture_is_named_by_the_most_common_type_when_the_file_does_not_say(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    assert quantization(open_gguf(write_tiny_gguf(path, tensor_type=Q.Q5_0).path)) == "Q5_0"
    assert quantization(open_gguf(write_tiny_gguf(path, metadata={"general.file_type": 15}).path)) == "Q4_K_M"
    assert quantization(open_gguf(write_tiny_gguf(path, tensor_type=Q.F32).path)) == "F32"


def test_inspecting_loads_no_inference_library() -> None:
    script = "import sys, agentserve.engine.inspect; print([m for m in ('openvino', 'torch', 'transformers') if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-P", "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"
