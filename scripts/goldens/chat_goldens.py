#!/usr/bin/env python3
"""Writes tests/golden/chat_templates.json: what Jinja makes of chat templates for one question, with and
without a system message, as transformers' apply_chat_template sets it up. Templates written for the
tests are stored with it; of checkpoints' own only the results are.

    pip install jinja2==3.1.6 gguf
    scripts/goldens/chat_goldens.py --data DIR --smollm2 SmolLM2-135M-Instruct.gguf

DIR holds tokenizers/, as for -DEVENTIDE_TEST_DATA.
"""

import argparse
import json
import pathlib

from jinja2.sandbox import ImmutableSandboxedEnvironment

OUT = pathlib.Path(__file__).resolve().parents[2] / "tests/golden/chat_templates.json"
QUESTION = "  What's 6 * 7?\nShow \"how\". <|im_end|> \u00e4\u4e16 "
SYSTEM = "Answer in one word.\n"

# Forms that are known, and for each of the rest what must not be taken for ChatML.
OWN = {
    "plain": "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content']"
    " + '<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
    "roles": "{%- for message in messages -%}\n  {%- if message.role == 'user' -%}\n"
    "    {{- \"<|im_start|>user\\n\" ~ message.content ~ \"<|im_end|>\\n\" -}}\n"
    "  {%- elif message.role == 'system' -%}\n    {{- '<|im_start|>system\\n' + message.content + '<|im_end|>\\n' -}}\n"
    "  {%- elif message.role == 'assistant' -%}\n    {{- 'whatever ' + message.content | trim -}}\n  {%- endif -%}\n"
    "{%- endfor -%}\n{%- if add_generation_prompt -%}\n  {{- '<|im_start|>assistant\\n' -}}\n{%- endif -%}\n",
    "default_system": "{% for message in messages %}{% if loop.first and message['role'] != 'system' %}"
    "{{ '<|im_start|>system\\nBe brief.<|im_end|>\\n' }}{% endif %}{{ '<|im_start|>' + message['role'] + '\\n' +"
    " message['content'] + '<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|im_start|>assistant\\n' }}{% endif %}",
}
PLAIN = OWN["plain"]
REFUSED = {
    "other markers": PLAIN.replace("im_start", "start"),
    "trimmed content": PLAIN.replace("message['content']", "message['content'] | trim"),
    "text before": "Hello. " + PLAIN,
    "bos": "{{ bos_token }}" + PLAIN,
    "date": PLAIN.replace("{% if add", "{{ strftime_now('%Y') }}{% if add"),
    "no turn for the answer": PLAIN[: PLAIN.index("{% if add")],
    "another beginning of the answer": PLAIN.replace("assistant\\n", "assistant\\n<think>\\n"),
    "blanks that are printed": PLAIN.replace("{% endfor %}", "  \n{% endfor %}"),
    "a changed question": PLAIN.replace("{{'<|im", "{% set content = message.content | upper %}{{'<|im").replace(
        "message['content']", "content"
    ),
    "other messages": "{% set messages = messages[1:] %}" + PLAIN,
    "two systems": "{{ '<|im_start|>system\\na<|im_end|>\\n' }}{{ '<|im_start|>system\\nb<|im_end|>\\n' }}" + PLAIN,
    "an unclosed block": PLAIN[:-5],
    "a macro": "{% macro f(x) %}{{ x }}{% endmacro %}" + PLAIN,
}


def render(template, system):
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    messages = [{"role": "user", "content": QUESTION}]
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    return environment.from_string(template).render(messages=messages, add_generation_prompt=True)


def results(template):
    return {"asked": render(template, None), "with_system": render(template, SYSTEM)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--smollm2", type=pathlib.Path, required=True)
    args = parser.parse_args()
    import gguf

    golden = {"question": QUESTION, "system": SYSTEM, "refused": REFUSED, "own": {}, "data": {}}
    for name, template in OWN.items():
        golden["own"][name] = {"template": template, **results(template)}
    for name in ["qwen2.5_tokenizer_config.json", "qwen3_tokenizer_config.json"]:
        config = json.loads((args.data / "tokenizers" / name).read_text(encoding="utf-8"))
        golden["data"][name] = results(config["chat_template"])
    field = gguf.GGUFReader(str(args.smollm2)).fields["tokenizer.chat_template"]
    golden["smollm2"] = results(field.contents())
    OUT.write_text(json.dumps(golden, indent=1, ensure_ascii=True) + "\n")
    print(OUT, OUT.stat().st_size)


if __name__ == "__main__":
    main()
