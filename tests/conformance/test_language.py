"""Language models under the contracts: embeddings tied to the output and pruned at a sparsity of their own."""

import io
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import acdc
from acdc import methods
from acdc.models.gpt import GPT
from acdc.models.transformer_xl import Memory, TransformerXL
from tests.conformance.harness import DEVICE, OPTIMIZERS, assert_same_bits
from tests.warned import SMALL_NETS

EPOCHS, STEPS, VOCABULARY, TIME = 6, 5, 40, 12
TOTAL = EPOCHS * STEPS
OTHERS, WORDS = 0.8, 0.5  # sparsities of the linear layers and of the embeddings
PATTERNS = {"gpt": "embedding", "transformer-xl": "embedding.words"}

every_model = pytest.mark.parametrize("name", PATTERNS)
both_optimizers = pytest.mark.parametrize("optimizer", ["AdamW", "LAMB without bias correction"])
every_method = pytest.mark.parametrize("method", ["acdc", "gmp", "rigl", "top_kast"])
pytestmark = SMALL_NETS


def new_model(name: str, seed: int = 0) -> nn.Module:
    if name == "gpt":
        return GPT(VOCABULARY, layers=2, width=16, heads=2, context=TIME, seed=seed).to(DEVICE)
    sizes: dict[str, Any] = {"layers": 2, "width": 16, "heads": 2, "head_width": 8, "feedforward": 24}
    lengths: dict[str, Any] = {"target_length": TIME, "memory_length": TIME, "dropout": 0.1, "attention_dropout": 0.1}
    rest: dict[str, Any] = {"cutoffs": (16, 28), "div_val": 2, "init_std": 0.1, "projection_std": 0.1, "seed": seed}
    return TransformerXL(VOCABULARY, **sizes, **lengths, **rest).to(DEVICE)


def new_method(method: str, name: str) -> acdc.Method:
    kind = "global" if method in ("acdc", "gmp") else "uniform"
    knobs: dict[str, Any] = {"sparsity": OTHERS, "embeddings": True, "distribution": {PATTERNS[name]: {kind: WORDS}}}
    if method in ("rigl", "top_kast"):
        knobs["every"] = "3st"
    if method == "acdc":
        return acdc.ACDC.paper(epochs=EPOCHS, **knobs)
    return methods.build(method, epochs=EPOCHS, **knobs)


def text(step: int) -> Tensor:
    generator = torch.Generator().manual_seed(100 + step)
    return torch.randint(0, VOCABULARY, (4, TIME + 1), generator=generator).to(DEVICE)


@dataclass
class Run:
    name: str
    method: str
    optimizer_name: str
    seed: int = 0
    memory: Memory | None = None
    model: nn.Module = field(init=False)

    def __post_init__(self) -> None:
        self.model = new_model(self.name, self.seed)
        self.optimizer = OPTIMIZERS[self.optimizer_name](self.model.parameters())
        method = new_method(self.method, self.name)
        self.sparsifier = acdc.attach(self.model, self.optimizer, method, steps_per_epoch=STEPS)
        self.weights = {weight.name: weight.param for weight in self.sparsifier.layers.weights}
        self.groups = [
            [n for n in self.weights if n.startswith(PATTERNS[self.name]) == words] for words in (True, False)
        ]

    def backward(self, step: int) -> None:
        torch.manual_seed(step)  # of dropout
        self.optimizer.zero_grad()
        words = text(step)
        if isinstance(self.model, GPT):
            self.model.loss(words[:, :-1], words[:, 1:]).backward()
        else:
            loss, self.memory = self.model(words[:, :-1], words[:, 1:], self.memory)
            loss.backward()

    def train(self, first: int = 0, last: int = TOTAL) -> "Run":
        for step in range(first, last):
            self.backward(step)
            self.optimizer.step()
        return self

    def kept(self, masks: dict[str, Tensor]) -> list[int]:
        return [sum(int(masks[name].sum()) for name in group) for group in self.groups]

    def target(self) -> list[int]:
        sizes = [sum(self.weights[name].numel() for name in group) for group in self.groups]
        return [size - round(s * size) for size, s in zip(sizes, (WORDS, OTHERS), strict=True)]

    def bits(self) -> dict[str, Tensor]:
        state = {f"model.{name}": value.cpu().clone() for name, value in self.model.state_dict().items()}
        for index, entries in self.optimizer.state_dict()["state"].items():
            state |= {f"optimizer.{index}.{key}": torch.as_tensor(value).cpu() for key, value in entries.items()}
        return state | {f"memory.{i}": part.cpu() for i, part in enumerate(self.memory or ())}


@every_model
@both_optimizers
@every_method
def test_zeros_counts_and_what_finish_returns(name: str, optimizer: str, method: str) -> None:
    run = Run(name, method, optimizer)
    assert len(run.groups[0]) == (1 if name == "gpt" else 3)
    for step in range(TOTAL):
        run.train(step, step + 1)
        masks = run.sparsifier.masks
        assert bool(masks) == (run.sparsifier.phase.kind == "sparse")
        if masks and method != "gmp":  # whose sparsity rises
            assert run.kept(masks) == run.target(), f"step {step}"
        for layer, mask in masks.items():
            assert not run.weights[layer][~mask].any(), f"step {step}: a pruned weight of {layer} moved"
            if method != "top_kast":  # which trains latent weights
                state = run.optimizer.state[run.weights[layer]]
                for key in ("exp_avg", "exp_avg_sq"):
                    assert not state[key][~mask].any(), f"step {step}: {key} of a pruned weight of {layer} moved"
    result = run.sparsifier.finish()
    assert run.kept(result.masks) == run.target()
    live, plain = run.model.eval(), new_model(name, seed=1).eval()
    plain.load_state_dict(result.sparse)
    assert_same_bits(dict(live.state_dict()), dict(plain.state_dict()))
    words = text(0)
    arguments = (words[:, :-1],) if name == "gpt" else (words[:, :-1], words[:, 1:])
    outputs = [model(*arguments) for model in (live, plain)]
    assert torch.equal(*(output if name == "gpt" else output[0] for output in outputs))
    assert (result.dense is not None) == run.sparsifier.method.gives_twin()
    if result.dense is not None:
        plain.load_state_dict(result.dense)
        assert all(param.isfinite().all() for param in plain.parameters())


@every_model
@both_optimizers
def test_optimizer_state_at_both_transitions(name: str, optimizer: str) -> None:
    """The first moment starts again at a decompression, the second stays; of tied embeddings as of all others."""
    run = Run(name, "acdc", optimizer)
    seen = {"sparse": 0, "dense": 0}
    for step in range(TOTAL):
        before = {layer: param.detach().clone() for layer, param in run.weights.items()}
        square = (
            {layer: run.optimizer.state[p]["exp_avg_sq"].clone() for layer, p in run.weights.items()} if step else {}
        )
        was = run.sparsifier.phase
        run.backward(step)
        phase = run.sparsifier.phase
        if phase.index != was.index:
            seen[phase.kind] += 1
            states = {layer: run.optimizer.state[param] for layer, param in run.weights.items()}
            for layer, param in run.weights.items():
                mask = run.sparsifier.masks.get(layer, torch.ones_like(param, dtype=torch.bool))
                assert torch.equal(param, before[layer] * mask)
                assert torch.equal(states[layer]["exp_avg_sq"], square[layer] * mask)
                if phase.kind == "dense":
                    assert not states[layer]["exp_avg"].any()
            if phase.kind == "dense":
                words = run.groups[0][0]
                grad = run.weights[words].grad
                assert grad is not None
                assert grad[before[words] == 0].any(), "pruned words get gradients again"
        run.optimizer.step()
    assert seen["sparse"] == seen["dense"] + 1
    assert seen["dense"] >= 1


@every_model
@both_optimizers
@pytest.mark.parametrize("method", ["acdc", "rigl"])
def test_resuming_gives_the_same_bits(name: str, optimizer: str, method: str) -> None:
    """From inside dense and compressed phases, and where one ends; with the memory of the text."""
    whole, files = Run(name, method, optimizer), {}
    stops = (4, 12, 15, 27)
    for first, last in zip((0, *stops), (*stops, TOTAL), strict=True):
        whole.train(first, last)
        files[last] = io.BytesIO()
        parts = (whole.model, whole.optimizer, whole.sparsifier)
        torch.save((*(part.state_dict() for part in parts), whole.memory), files[last])
    for stop in stops:
        files[stop].seek(0)
        model, optimizer_state, sparsifier, memory = torch.load(files[stop], weights_only=True)
        run = Run(name, method, optimizer, seed=1, memory=memory)
        run.model.load_state_dict(model)
        run.optimizer.load_state_dict(optimizer_state)
        run.sparsifier.load_state_dict(sparsifier)
        assert_same_bits(whole.bits(), run.train(stop).bits())
    masks = whole.sparsifier.masks
    assert whole.kept(masks) == whole.target()
