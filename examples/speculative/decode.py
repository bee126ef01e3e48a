"""Lets a draft model guess the next tokens, which the large model checks in one pass (speculative decoding).

    torchrun --nproc-per-node 2 decode.py --guesses 4

Rank 0 has the large model, rank 1 the draft. Guesses are kept up to the first one that differs from the large model's
own token, which replaces that guess: answers are therefore those of greedy decoding
(Leviathan et al., arXiv:2211.17192). The draft is the same model without some of its layers (Zhang et al., Draft &
Verify, arXiv:2309.08168). With `--guesses 0` the large model runs alone.
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.profiler import record_function

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "generate"))

from batch import opened, parser, prompts, show
from llama import Llama, load

LEAST_NEEDED = (12, 3, 17, 18, 14, 5, 26, 15, 16, 7, 13, 25)
"""Layers of SmolLM2-135M-Instruct, in the order of removal: without each, and those before it, most of the next tokens
of six answers stay the same."""


@torch.inference_mode()
def main() -> None:
    """Loads, answers one prompt after the other, and prints on rank 0."""
    known = parser("Answers of a Llama that checks another one's guesses.")
    known.add_argument("--guesses", type=int, default=4, help="tokens that the draft is ahead (default 4)")
    known.add_argument("--without", type=int, default=4, help="layers that the draft lacks, 0 to 12 (default 4)")
    options = known.parse_args()
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    if ranks != (2 if options.guesses else 1):
        raise SystemExit(f"--guesses {options.guesses} needs {2 if options.guesses else 1} ranks, not {ranks}")
    checkpoint = opened(options)
    model = load(checkpoint)
    if rank == 1:
        for layer in LEAST_NEEDED[: options.without]:
            del model.blk[str(layer)]
    tokenizer = checkpoint.tokenizer()
    texts = prompts(tokenizer, options.batch)
    dist.barrier()
    if rank == 1:
        for text in texts:
            guess(model, text, options.tokens, options.guesses)
    else:
        answers, right, guessed = [], 0, 0
        for text in texts:
            answer, matches = check(model, text, options.tokens, options.guesses)
            answers.append(answer)
            right, guessed = right + sum(matches), guessed + options.guesses * len(matches)
        show(checkpoint, tokenizer, answers)
        if guessed:
            print(f"accepted {right} of {guessed} guesses")
    dist.destroy_process_group()


def check(model: Llama, text: list[int], tokens: int, guesses: int) -> tuple[list[int], list[int]]:
    """The large model: the answer, and the number of correct guesses of each round."""
    memory = model.remember()
    with record_function("prefill"):
        answer = [int(model(torch.tensor(text), [memory]).argmax())]
    if guesses:
        dist.send(torch.tensor(answer), 1)
    matches = []
    while len(answer) < tokens:
        with record_function("decode"):
            guessed = torch.empty(guesses, dtype=torch.long)
            if guesses:
                dist.recv(guessed, 1)
            # Row by row: the token after the newest one, and the token after each guess.
            newest = torch.cat((torch.tensor(answer[-1:]), guessed))
            own = model(newest, [memory], every=True).argmax(-1)
            right = int((own[:-1] == guessed).cumprod(0).sum())
            memory.forget(guesses - right)
            if guesses:
                matches.append(right)
                dist.send(torch.tensor([right, int(own[right])]), 1)
            answer += own[: right + 1].tolist()
    return answer[:tokens], matches


def guess(model: Llama, text: list[int], tokens: int, guesses: int) -> None:
    """The draft: guesses tokens, receives the number of correct ones and the token after these, and repeats."""
    memory = model.remember()
    with record_function("prefill"):
        model(torch.tensor(text), [memory])
    first = torch.empty(1, dtype=torch.long)
    dist.recv(first, 0)
    known, unread = 1, first.tolist()
    while known < tokens:
        with record_function("guess"):
            guessed: list[int] = []
            for _ in range(guesses):
                guessed.append(int(model(torch.tensor(unread), [memory]).argmax()))
                unread = guessed[-1:]
            dist.send(torch.tensor(guessed), 0)
        said = torch.empty(2, dtype=torch.long)
        dist.recv(said, 0)
        right, next_token = said.tolist()
        # The last guess has not been processed yet.
        memory.forget(max(guesses - 1 - right, 0))
        unread = [*guessed[-1:], next_token] if right == guesses else [next_token]
        known += right + 1


if __name__ == "__main__":
    main()
