# pyright: reportMissingImports=false
"""`python -m full_scale.vllm_contract`: what a real vLLM answers to the two rollout samplers, checked and recorded.

A tiny Qwen2 learns three texts by heart, so that it is known what it will say; one of its closing tags ends inside a
token, as tags do in Qwen's vocabulary. An engine in this process and a server over HTTP must then give these ids, with
the log-probabilities of transformers, end at stop strings or at the room, and play the same episode as the transformers
sampler. The answers go to tests/full_scale/data/vllm_contract.json, which CI replays without vLLM. `make vllm-contract`
runs this on a CPU build of vLLM in an environment of its own.
What this file does not do: test weight transfer, tensor parallelism or anything that needs a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from full_scale.protocol import PROMPT, SHORT_INVALID, Limits, decode, encode
from full_scale.retriever.stub import StubSearch
from full_scale.rollout import rollout
from full_scale.sampling import TransformersSampler, stream
from full_scale.sampling_vllm import VLLMColocateSampler, VLLMServerSampler
from lldsim.errors import LldsimError

RECORDED = Path(__file__).resolve().parents[1] / "tests" / "full_scale" / "data" / "vllm_contract.json"
# Prompt -> what the model says. The last one never closes a tag, so that its turn ends at the room.
TEXTS = {
    "Q1:": "I look. <search> radium </search>\n and on",
    "Q2:": "<answer> Paris </answer> and on",
    "Q3:": "no tag at all " * 6,
}
DOCUMENT = "Radium\nA metal."
INFORMATION_TURN = "<answer> a metal </answer> and on"
ROOM = 24
LOGP_TOLERANCE = 1e-3  # float32 in both engines, other kernels; a bfloat16 engine would be 1e-2 off


def memorised(folder: Path, *, steps: int = 150) -> tuple[Any, Any]:
    """Return (model, tokenizer) that continue the known prompts by heart, saved to `folder`."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    core: Any = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    texts = [*TEXTS, *TEXTS.values(), INFORMATION_TURN, PROMPT, DOCUMENT] * 20
    special = ["<|endoftext|>", "<|im_end|>"]
    core.train_from_iterator(
        texts,
        trainers.BpeTrainer(vocab_size=480, special_tokens=special, initial_alphabet=alphabet, show_progress=False),
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token=special[1], pad_token=special[0], padding_side="left"
    )
    tokenizer.add_tokens([">\n"])
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=128,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,  # heads of 64: vLLM's CPU attention takes multiples of 32
        max_position_embeddings=512,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    model = Qwen2ForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    rows = [(encode(tokenizer, prompt), encode(tokenizer, text)) for prompt, text in TEXTS.items()]
    rows.append((_after_search(tokenizer), encode(tokenizer, INFORMATION_TURN)))
    for _ in range(steps):
        loss = torch.stack([_loss(model, prompt, text) for prompt, text in rows]).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model, tokenizer


def _after_search(tokenizer: Any) -> list[int]:
    """Return the context of Q1's second turn, as the protocol builds it."""
    from full_scale.protocol import Trajectory, format_documents

    first = Trajectory(encode(tokenizer, "Q1:"), Limits(), tokenizer)
    ids = encode(tokenizer, TEXTS["Q1:"])
    first.act(ids, [0.0] * len(ids))
    first.observe(format_documents([DOCUMENT]))
    return first.context


def _loss(model: Any, prompt: list[int], text: list[int]) -> Any:
    import torch

    logits = model(input_ids=torch.tensor([prompt + text])).logits[0, len(prompt) - 1 : -1]
    return torch.nn.functional.cross_entropy(logits, torch.tensor(text))


def contexts(tokenizer: Any) -> list[list[int]]:
    """Return the contexts that both engines are asked about."""
    return [encode(tokenizer, prompt) for prompt in TEXTS]


def check_turns(turns: Sequence[tuple[list[int], list[float]]], model: Any, tokenizer: Any) -> dict[str, float]:
    """Compare an engine's turns with the transformers sampler's and return how far log-probabilities are apart."""
    import torch

    asked = contexts(tokenizer)
    streams = [stream(0, 0, k) for k in range(len(asked))]
    with torch.no_grad():
        wanted = TransformersSampler(model, tokenizer, temperature=0.0)(asked, [ROOM] * len(asked), streams)
    gap = 0.0
    for (ids, logps), (expected, expected_logps) in zip(turns, wanted, strict=True):
        said, meant = decode(tokenizer, ids), decode(tokenizer, expected)
        _must(ids == expected, f"the engine said {said!r}, transformers {meant!r}")
        gap = max(gap, *(abs(a - b) for a, b in zip(logps, expected_logps, strict=True)))
    _must(gap < LOGP_TOLERANCE, f"log-probabilities differ by {gap}")
    ends = [decode(tokenizer, ids) for ids, _ in turns]
    _must(ends[0].endswith("</search>\n"), f"the token that ends the tag was not kept whole: {ends[0]!r}")
    _must(ends[1].endswith("</answer>"), f"the turn did not end at its stop string: {ends[1]!r}")
    _must(len(turns[2][0]) == ROOM, f"{len(turns[2][0])} tokens in a room of {ROOM}")
    return {"largest_logp_gap": gap}


def check_episode(sampler: Any, model: Any, tokenizer: Any) -> dict[str, int]:
    """Play whole episodes with an engine and with transformers; ids and masks must be the same."""
    import torch

    def play(chosen: Any) -> list[Any]:
        with torch.no_grad():
            return rollout(
                list(TEXTS),
                tokenizer=tokenizer,
                sampler=chosen,
                search=StubSearch({"radium": [DOCUMENT]}),
                limits=Limits(max_turns=1, turn_tokens=ROOM, observation_tokens=60, completion_tokens=160),
                streams=[stream(0, 0, k) for k in range(len(TEXTS))],
                invalid_text=SHORT_INVALID,
            )

    found, wanted = play(sampler), play(TransformersSampler(model, tokenizer, temperature=0.0))
    for ours, theirs in zip(found, wanted, strict=True):
        for name in ("completion_ids", "action_mask", "action_id", "answer_mask"):
            _must(getattr(ours, name) == getattr(theirs, name), f"{name} differs from the transformers sampler's")
    first = found[0]
    _must((first.answer, first.searches) == ("a metal", 1), f"the episode ended with {first.answer!r}")
    written = decode(tokenizer, [i for i, m in zip(first.completion_ids, first.action_mask, strict=True) if m])
    _must("information" not in written, "retrieved text is marked as the policy's")
    return {"episodes": len(found), "tokens": sum(len(t.completion_ids) for t in found)}


def check_seeds(sampler: Any, tokenizer: Any) -> None:
    """Sample at temperature 1 twice from the same streams: the same text; from others: another."""
    asked = [encode(tokenizer, "Z") for _ in range(4)]

    def sample(seed: int) -> list[list[int]]:
        return [ids for ids, _ in sampler(asked, [12] * 4, [stream(seed, 0, k) for k in range(4)])]

    _must(sample(1) == sample(1), "the same streams gave other text")
    _must(sample(1) != sample(2), "other streams gave the same text")


def recorded_outputs(outputs: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the fields of vLLM's RequestOutput that the sampler reads, as plain values."""
    rows = []
    for output in outputs:
        best = output.outputs[0]
        rows.append(
            {
                "token_ids": list(best.token_ids),
                "logprobs": [{str(i): entry.logprob for i, entry in step.items()} for step in best.logprobs],
                "finish_reason": best.finish_reason,
                "stop_reason": best.stop_reason,
            }
        )
    return rows


class Recorder:
    """An engine that remembers the last outputs and parameters; `generate` is vLLM's."""

    def __init__(self, llm: Any) -> None:
        self.llm, self.outputs, self.parameters = llm, [], []

    def generate(self, prompts: Any, parameters: Any, **rest: Any) -> Any:
        """Pass everything on."""
        self.outputs, self.parameters = self.llm.generate(prompts, parameters, **rest), parameters
        return self.outputs


@contextmanager
def server(folder: Path) -> Iterator[str]:
    """Run `vllm serve` on loopback and yield its URL."""
    import httpx

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder), "--port", str(port)]
    command += ["--host", "127.0.0.1", "--dtype", "float32", "--enforce-eager", "--max-model-len", "256"]
    url = f"http://127.0.0.1:{port}"
    with (folder / "server.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        for _ in range(300):
            if process.poll() is not None:
                break
            try:
                if httpx.get(f"{url}/health", timeout=2.0).status_code == 200:
                    yield url
                    return
            except httpx.HTTPError:
                time.sleep(1.0)
        tail = (folder / "server.log").read_text()[-2000:]
        raise LldsimError(f"`vllm serve` did not come up (status {process.poll()}):\n{tail}")
    finally:
        process.terminate()
        process.wait(timeout=60)


def run_contract(folder: Path, *, serve: bool = True) -> dict[str, Any]:
    """Run every check against a real vLLM and return what is recorded."""
    import httpx
    import transformers
    import vllm

    seconds = {}
    started = time.perf_counter()
    model, tokenizer = memorised(folder)
    seconds["model"] = time.perf_counter() - started
    asked, rooms = contexts(tokenizer), [ROOM] * len(TEXTS)
    streams = [stream(0, 0, k) for k in range(len(asked))]
    content: dict[str, Any] = {
        "label": "measured",
        "versions": {"vllm": vllm.__version__, "transformers": transformers.__version__},
        "contexts": asked,
        "room": ROOM,
    }
    started = time.perf_counter()
    recorder = Recorder(
        vllm.LLM(str(folder), dtype="float32", enforce_eager=True, max_model_len=256, disable_log_stats=True)
    )
    seconds["engine start"] = time.perf_counter() - started
    started = time.perf_counter()
    greedy = VLLMColocateSampler(recorder, temperature=0.0)
    turns = greedy(asked, rooms, streams)
    content["colocate"] = {"outputs": recorded_outputs(recorder.outputs), **check_turns(turns, model, tokenizer)}
    content["colocate"] |= {"turns": [ids for ids, _ in turns], "logps": [logps for _, logps in turns]}
    content["colocate"]["parameters"] = _parameters(recorder.parameters[0])
    content["colocate"] |= check_episode(greedy, model, tokenizer)
    check_seeds(VLLMColocateSampler(recorder), tokenizer)
    seconds["engine checks"] = time.perf_counter() - started
    content["tokens"] = {str(i): decode(tokenizer, [i]) for i in sorted({i for ids, _ in turns for i in ids})}
    if serve:
        del recorder, greedy
        started = time.perf_counter()
        with server(folder) as url:
            seconds["server start"] = time.perf_counter() - started
            bodies: list[Any] = []
            keep = _Keeping(bodies, httpx.HTTPTransport())
            over_http = VLLMServerSampler(url, str(folder), temperature=0.0, concurrency=1, transport=keep)
            turns = over_http(asked, rooms, [stream(0, 0, k) for k in range(len(asked))])
            content["server"] = {"bodies": _plain(bodies), **check_turns(turns, model, tokenizer)}
            content["server"] |= check_episode(over_http, model, tokenizer)
            check_seeds(VLLMServerSampler(url, str(folder)), tokenizer)
    content["seconds"] = {name: round(value, 1) for name, value in seconds.items()}
    return content


class _Keeping:
    """An httpx transport that keeps the first answers; built by duck typing, so that httpx is imported late."""

    def __init__(self, bodies: list[Any], inner: Any) -> None:
        self.bodies, self.inner = bodies, inner

    def handle_request(self, request: Any) -> Any:
        """Answer as the real transport does."""
        answer = self.inner.handle_request(request)
        answer.read()
        self.bodies.append(answer.json())
        return answer

    def close(self) -> None:
        """Close the real transport."""
        self.inner.close()

    def __enter__(self) -> _Keeping:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _plain(bodies: Sequence[Any]) -> list[Any]:
    """Return the answers without what differs from run to run."""
    dropped = {"id", "created", "model", "system_fingerprint"}
    return [{k: v for k, v in body.items() if k not in dropped} for body in bodies]


def _parameters(parameters: Any) -> dict[str, Any]:
    names = ("temperature", "top_p", "max_tokens", "stop", "include_stop_str_in_output", "logprobs")
    return {name: getattr(parameters, name) for name in names}


def _must(holds: bool, trouble: str) -> None:
    if not holds:
        raise LldsimError(f"vLLM contract: {trouble}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m full_scale.vllm_contract", description="Check vLLM's answers.")
    parser.add_argument("--out", default=str(RECORDED))
    parser.add_argument("--no-server", action="store_true", help="only the engine in this process")
    args = parser.parse_args(argv)
    settings = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}
    for name, value in (settings | {"HF_HUB_OFFLINE": "1"}).items():
        os.environ.setdefault(name, value)
    with tempfile.TemporaryDirectory() as folder:
        content = run_contract(Path(folder), serve=not args.no_server)
    out = Path(args.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")
    for name in ("colocate", "server"):
        if name in content:
            part = content[name]
            print(f"{name}: {part['episodes']} episodes, log-probabilities within {part['largest_logp_gap']:.1e}")
    print("seconds:", ", ".join(f"{name} {value:g}" for name, value in content["seconds"].items()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
