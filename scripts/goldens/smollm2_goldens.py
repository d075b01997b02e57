#!/usr/bin/env python3
"""Writes tests/golden/smollm2_greedy.json: what transformers in float32 answers greedily to the first
turns of 20 MT-bench questions with SmolLM2-135M-Instruct, its weights dequantised from the GGUF file by
the Python package `gguf`. Ends of text do not end an answer.

"prompts" are ids of the chat template's text; "answers" the 64 ids after each; "margins" at each of them
[log probability of the id, of the second best, id of the second best], teacher-forced in one pass.

Needs: pip install torch transformers gguf accelerate. Usage: smollm2_goldens.py MODEL.gguf mt_bench_question.jsonl
"""
import argparse
import json
import pathlib

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

QUESTIONS, LENGTH = 20, 64


def answer(model, prompt):
    ids, cache, step = list(prompt), None, torch.tensor([prompt])
    with torch.no_grad():
        for _ in range(LENGTH):
            out = model(step, past_key_values=cache, use_cache=True)
            cache, step = out.past_key_values, out.logits[:, -1:].argmax(-1)
            ids.append(int(step))
        logits = model(torch.tensor([ids])).logits[0, len(prompt) - 1:-1].double()
    best = torch.log_softmax(logits, -1).topk(2)
    answer = ids[len(prompt):]
    margins = []
    for token, values, top in zip(answer, best.values.tolist(), best.indices.tolist()):
        assert top[0] == token, "with and without a cache transformers answers differently"
        margins.append([round(values[0], 6), round(values[1], 6), top[1]])
    return answer, margins


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("questions", type=pathlib.Path)
    args = parser.parse_args()
    transformers.utils.logging.disable_progress_bar()
    where = {"pretrained_model_name_or_path": args.model.parent, "gguf_file": args.model.name}
    tokenizer = AutoTokenizer.from_pretrained(**where)
    model = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32).eval()
    result = {"questions": [], "prompts": [], "answers": [], "margins": []}
    for line in args.questions.open().readlines()[:QUESTIONS]:
        question = json.loads(line)
        messages = [{"role": "user", "content": question["turns"][0]}]
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        prompt = tokenizer(text, add_special_tokens=False)["input_ids"]
        ids, margins = answer(model, prompt)
        smallest = min(a - b for a, b, _ in margins)
        print(question["question_id"], len(prompt), f"smallest margin {smallest:.2e}",
              repr(tokenizer.decode(ids))[:90], flush=True)
        result["questions"].append(question["question_id"])
        result["prompts"].append(prompt)
        result["answers"].append(ids)
        result["margins"].append(margins)
    text = ",\n".join(f'"{key}": [\n' + ",\n".join(json.dumps(row, separators=(",", ":"))
                                                   for row in rows) + "]"
                      for key, rows in result.items())
    path = pathlib.Path(__file__).resolve().parents[2] / "tests/golden/smollm2_greedy.json"
    path.write_text("{" + text + "}\n")


if __name__ == "__main__":
    main()
