#!/usr/bin/env python3
"""Writes tests/golden/score/*.json: log probabilities of given tokens as transformers computes them in
float64 on checkpoints that `eventide export` wrote, and by how much transformers' own float32 and
bfloat16 miss them. Prints the same errors of `eventide score` beside them.

Everything in float64 means also what transformers keeps in float32 whatever the model's type is: norms,
rotary angles and the scores of experts are replaced here.

A golden's numbers: "logprobs" is the base64 text of little-endian int32, each a natural logarithm times
2^27, of every token but the first of each sequence, sequences one after the other; "best" has, for every
16th of these, [likeliest id, second, difference of their log probabilities].
The tokens: state = state * 6364136223846793005 + 1442695040888963407 mod 2^64, token = (state >> 33) mod
vocabulary, from "seed" on through all sequences.

Needs: pip install torch transformers. Usage: score_goldens.py EVENTIDE_BINARY [MODEL ...]
"""
import argparse
import base64
import json
import pathlib
import subprocess
import tempfile
import types

import numpy as np
import torch
import transformers
from transformers import AutoModelForCausalLM

MODELS = ["random:test-llama@41", "random:test-llama-7-1@42", "random:test-llama-9-3@43",
          "random:test-llama-14-2@44", "random:test-qwen3@45", "random:test-qwen3-9-3@46",
          "random:test-qwen3-14-2@47", "random:test-moe@48", "random:test-mixtral@49",
          "random:test-qwen2-moe@50", "random:test-olmoe@51"]
LENGTHS = [1200, 600, 300, 9]
SCALE = 2.0**27
BEST_EVERY = 16


def some_tokens(seed, vocab):
    state, sequences = seed, []
    for length in LENGTHS:
        tokens = []
        for _ in range(length):
            state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
            tokens.append((state >> 33) % vocab)
        sequences.append(tokens)
    return sequences


def norm_in_its_type(self, x):
    return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)


def route_in_its_type(self, hidden_states):
    logits = torch.nn.functional.linear(hidden_states.reshape(-1, self.hidden_dim), self.weight)
    values, indices = torch.topk(logits.softmax(-1), self.top_k, dim=-1)
    if getattr(self, "norm_topk_prob", True):  # Mixtral always does
        values = values / values.sum(-1, keepdim=True)
    return logits, values, indices


def make_exact(model):
    config = model.config
    theta = config.rope_parameters["rope_theta"]
    assert config.rope_parameters["rope_type"] == "default"
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim
    frequencies = theta**-exponents

    def rotary(self, x, position_ids):
        angles = position_ids[..., None].double() * frequencies
        angles = torch.cat((angles, angles), dim=-1)
        return angles.cos(), angles.sin()

    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = types.MethodType(norm_in_its_type, module)
        if type(module).__name__.endswith("TopKRouter"):
            module.forward = types.MethodType(route_in_its_type, module)
        if type(module).__name__.endswith("RotaryEmbedding"):
            module.forward = types.MethodType(rotary, module)
    return model


def load(folder, dtype, attention="sdpa"):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation=attention,
                                                 experts_implementation="eager")
    return model.eval()


def log_softmaxes(model, sequences):
    """[scored position, vocabulary] in float64."""
    parts = []
    for tokens in sequences:
        with torch.no_grad():
            logits = model(torch.tensor([tokens])).logits[0, :-1].double()
        parts.append(torch.log_softmax(logits, -1).numpy())
    return np.concatenate(parts)


def error(got, expected):
    difference = np.abs(got - expected)
    return {"max": float(f"{difference.max():.4g}"),
            "rms": float(f"{np.sqrt((difference**2).mean()):.4g}")}


def eventide_scores(binary, model, dtype, sequences, folder):
    lines = "".join(json.dumps({"id": i, "tokens": t}) + "\n" for i, t in enumerate(sequences))
    (folder / "in.jsonl").write_text(lines)
    subprocess.run([binary, "score", "--model", model, "--dtype", dtype, "--device", "cpu", "--input",
                    folder / "in.jsonl", "--output", folder / "out.jsonl", "--top", "1"], check=True)
    results = [json.loads(line) for line in open(folder / "out.jsonl")]
    return (np.concatenate([r["logprobs"][1:] for r in results]),
            np.concatenate([[t[0][0] for t in r["top"][1:]] for r in results]))


def one_model(binary, name, out):
    preset, seed = name.removeprefix("random:").split("@")
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        subprocess.run([binary, "export", "--model", name, "--output", folder / "hf"], check=True,
                       stdout=subprocess.DEVNULL)
        exact = make_exact(load(folder / "hf", torch.float64))
        sequences = some_tokens(int(seed), exact.config.vocab_size)
        given = np.concatenate([t[1:] for t in sequences])
        rows = np.arange(len(given))
        reference = log_softmaxes(exact, sequences)
        expected, likeliest = reference[rows, given], reference.argmax(-1)
        theirs = {}
        for label, dtype, attention in (("float32", torch.float32, "sdpa"),
                                        ("bfloat16", torch.bfloat16, "sdpa"),
                                        ("bfloat16 eager", torch.bfloat16, "eager")):
            got = log_softmaxes(load(folder / "hf", dtype, attention), sequences)
            theirs[label] = error(got[rows, given], expected)
            theirs[label]["flips"] = int((got.argmax(-1) != likeliest).sum())
        for label in ("float32", "bfloat16"):
            got, best = eventide_scores(binary, folder / "hf", label, sequences, folder)
            ours = error(got, expected)
            hf = theirs[label]
            print(f"| {preset} | {label} | {hf['max']:.2e} | {ours['max']:.2e} | "
                  f"{ours['max'] / hf['max']:.2f} | {hf['rms']:.2e} | {ours['rms']:.2e} | "
                  f"{ours['rms'] / hf['rms']:.2f} | {hf['flips']} | "
                  f"{int((best != likeliest).sum())} |", flush=True)
    print(f"  ({preset}, eager attention: {theirs.pop('bfloat16 eager')})")
    order = np.argsort(-reference[::BEST_EVERY], axis=-1, kind="stable")[:, :2]
    values = np.take_along_axis(reference[::BEST_EVERY], order, -1)
    golden = {
        "model": name, "seed": int(seed), "lengths": LENGTHS, "transformers": theirs,
        "best": [[int(a), int(b), float(f"{x - y:.6g}")] for (a, b), (x, y) in zip(order, values)],
        "logprobs": base64.b64encode(
            np.round(expected * SCALE).astype("<i4").tobytes()).decode()}
    text = json.dumps(golden).replace('], "lo', '],\n "lo').replace(', "best', ',\n "best')
    (out / f"{preset}.json").write_text(text + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("binary")
    parser.add_argument("models", nargs="*", default=MODELS)
    args = parser.parse_args()
    transformers.utils.logging.disable_progress_bar()
    out = pathlib.Path(__file__).resolve().parents[2] / "tests/golden/score"
    out.mkdir(parents=True, exist_ok=True)
    print("| model | dtype | transformers max | Eventide max | ratio | transformers RMS | "
          "Eventide RMS | ratio | flips, transformers | flips, Eventide |\n"
          "|---|---|---|---|---|---|---|---|---|---|")
    for name in args.models:
        one_model(args.binary, name, out)


if __name__ == "__main__":
    main()
