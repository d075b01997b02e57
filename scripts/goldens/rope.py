#!/usr/bin/env python3
"""Writes tests/golden/rope.json: inverse frequencies as transformers computes them (float32) for the
rope settings of published models. Needs: pip install torch transformers.
"""
import json
import pathlib

from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

CASES = [
    {"head_dim": 64, "rope": {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 32.0,
                              "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                              "original_max_position_embeddings": 8192}},
    {"head_dim": 128, "rope": {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0,
                               "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                               "original_max_position_embeddings": 8192}},
    {"head_dim": 128, "rope": {"rope_type": "default", "rope_theta": 1000000.0}},
    {"head_dim": 56, "rope": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.5}},
]


def main():
    for case in CASES:
        config = LlamaConfig(hidden_size=case["head_dim"] * 2, num_attention_heads=2,
                             head_dim=case["head_dim"], max_position_embeddings=131072,
                             rope_parameters=dict(case["rope"]))
        case["inv_freq"] = [float(x) for x in LlamaRotaryEmbedding(config).inv_freq]
    path = pathlib.Path(__file__).resolve().parents[2] / "tests/golden/rope.json"
    path.write_text(json.dumps(CASES, indent=1) + "\n")


if __name__ == "__main__":
    main()
