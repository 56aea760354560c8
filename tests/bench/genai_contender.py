"""openvino-genai's continuous batching behind the commands of `agentserve.engine.bench`.

    python tests/bench/genai_contender.py      first line {"model_path": …, "threads": n, "properties": {…}}

Its own converter reads the GGUF file and writes OpenVINO's format next to it, into a folder made for that. The
times are those of its own clock, so Python costs it nothing.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import openvino_genai as genai


def converted(gguf: Path) -> Path:
    """The folder with OpenVINO's files, which are made if they are not there; `gguf` lies in it."""
    if not (gguf.parent / "openvino_model.xml").exists():
        genai.LLMPipeline(str(gguf), "CPU", enable_save_ov_model=True)
    return gguf.parent


def load(spec: dict[str, Any]) -> genai.ContinuousBatchingPipeline:
    """Chunks of 512 tokens as ours, one request at a time, no reuse between requests."""
    scheduler = genai.SchedulerConfig()
    scheduler.cache_size = 1
    scheduler.enable_prefix_caching = False
    scheduler.max_num_batched_tokens = 512
    properties = {"INFERENCE_NUM_THREADS": spec["threads"], **spec.get("properties", {})}
    return genai.ContinuousBatchingPipeline(
        str(converted(Path(spec["model_path"]))), scheduler, "CPU", properties
    )


def complete(pipeline: genai.ContinuousBatchingPipeline, tokens: list[int], new: int) -> dict[str, Any]:
    """Greedy, `new` tokens whatever they are."""
    config = genai.GenerationConfig()
    config.max_new_tokens = config.min_new_tokens = new
    config.ignore_eos, config.do_sample = True, False
    result = pipeline.generate([ov.Tensor(np.array([tokens], np.int64))], [config])[0]
    made = len(result.m_generation_ids[0])
    return {
        "prompt_tokens": len(tokens),
        "completion_tokens": made,
        "prefill_s": result.perf_metrics.get_ttft().mean / 1000,
        "decode_s": result.perf_metrics.get_tpot().mean / 1000 * (made - 1),
    }


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # The library writes progress to standard output.
    pipeline = load(json.loads(sys.stdin.readline()))
    answers.write(json.dumps({"runtime": f"openvino-genai {genai.__version__}"}) + "\n")
    for line in sys.stdin:
        command = json.loads(line)
        answers.write(json.dumps(complete(pipeline, command["tokens"], command["new"])) + "\n")
    answers.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
