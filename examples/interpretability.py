"""A weight-sparse transformer and its circuit: which units and weights does it need for one task?

    python examples/interpretability.py [--sparsity 0.98] [--steps 1000]

Transformers with few non-zero weights compute with small circuits that people can read (Gao et al. 2025, "Weight-sparse
transformers have interpretable circuits"). Here a GPT of two layers learns to close a quotation with the kind of quote
that opened it. A unit is an input of a linear layer: a channel of the residual stream as the layer reads it, of
attention's values, or of the feed-forward part. All units but k are replaced by their means; those with the largest
attributions (activation from its mean, times gradient) stay, and the circuit is the smallest k that keeps the accuracy.
An edge is a non-zero weight between units of the circuit. A dense model trained alike is beside it.
"""

import argparse
from collections.abc import Callable
from contextlib import ExitStack

import torch
from torch import Tensor, nn

import acdc
from acdc.models.gpt import GPT

LETTERS, QUOTES, END, LENGTH = 12, (12, 13), 14, 12  # tokens 0 to 11 are letters


def examples(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Draw letters with one quote among them and an end mark; the target after the mark is that kind of quote."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(LETTERS, (count, LENGTH), generator=generator)
    kinds = torch.randint(len(QUOTES), (count,), generator=generator)
    places = torch.randint(LENGTH - 1, (count,), generator=generator)
    tokens[torch.arange(count), places] = QUOTES[0] + kinds
    tokens[:, -1] = END
    targets = torch.full_like(tokens, -100)
    targets[:, -1] = QUOTES[0] + kinds
    return tokens, targets


def train(sparsity: float, steps: int, width: int) -> GPT:
    """Train a model from the same seed, sparse or, with sparsity 0, dense."""
    model = GPT(LETTERS + 3, layers=2, width=width, heads=4, context=LENGTH, activation="gelu", tied=False, seed=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    rates = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=2e-3, total_steps=steps)
    sparsifier = None
    if sparsity:
        method = acdc.ACDC(sparsity=sparsity, epochs=100)
        sparsifier = acdc.attach(model, optimizer, method, steps_per_epoch=steps // 100)
    for step in range(steps):
        optimizer.zero_grad()
        model.loss(*examples(64, seed=step)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        rates.step()
    if sparsifier is not None:
        sparsifier.finish()  # the model is the sparse one; this checks that it is
    return model.eval()


def layers_of(model: GPT) -> dict[str, nn.Linear]:
    return {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}


def with_inputs(model: GPT, change: Callable[[str, Tensor], Tensor], run: Callable[[], Tensor]) -> Tensor:
    """Run with each linear layer's input passed through `change`."""
    with ExitStack() as stack:
        for name, layer in layers_of(model).items():
            hook = layer.register_forward_pre_hook(lambda _, args, name=name: (change(name, args[0]),))
            stack.callback(hook.remove)
        return run()


def attributions(model: GPT, data: tuple[Tensor, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return each unit's attribution, the mean of |(activation − its mean) · gradient|, and its mean activation."""
    seen: dict[str, Tensor] = {}

    def keep(name: str, inputs: Tensor) -> Tensor:
        inputs.retain_grad() if inputs.requires_grad else inputs.requires_grad_()
        seen[name] = inputs
        return inputs

    with_inputs(model, keep, lambda: model.loss(*data)).backward()
    model.zero_grad()
    means = {name: value.detach().mean(dim=(0, 1)) for name, value in seen.items()}
    scores = {
        name: ((value.detach() - means[name]) * value.grad).abs().sum(dim=(0, 1))
        for name, value in seen.items()
        if value.grad is not None
    }
    return scores, means


@torch.no_grad()
def accuracy(model: GPT, data: tuple[Tensor, Tensor], kept: dict[str, Tensor], means: dict[str, Tensor]) -> float:
    """Return how often the quote is right if all units but those kept have their mean activation."""
    logits = with_inputs(model, lambda n, x: torch.where(kept[n], x, means[n]), lambda: model(data[0]))
    return (logits[:, -1].argmax(-1) == data[1][:, -1]).float().mean().item()


def circuit(model: GPT, data: tuple[Tensor, Tensor], share: float = 0.99) -> dict[str, Tensor]:
    """Return which units are in the smallest circuit with at least this share of the model's accuracy."""
    scores, means = attributions(model, data)
    ranked = torch.cat([*scores.values()]).sort(descending=True).values
    everything = {name: torch.ones_like(score, dtype=torch.bool) for name, score in scores.items()}
    needed = share * accuracy(model, data, everything, means)
    low, high = 0, len(ranked)  # high units are enough
    while high - low > 1:
        middle = (low + high) // 2
        kept = {name: score >= ranked[middle - 1] for name, score in scores.items()}
        low, high = (low, middle) if accuracy(model, data, kept, means) >= needed else (middle, high)
    return {name: score >= ranked[high - 1] for name, score in scores.items()}


def written(model: GPT, name: str, kept: dict[str, Tensor]) -> Tensor:
    """Return which outputs of a layer the circuit reads."""
    layers = list(layers_of(model))
    if name.endswith("up"):
        return kept[name.removesuffix("up") + "down"]
    if name.endswith("qkv"):  # a value goes to its channel; queries and keys serve all channels of their head
        values = kept[name.removesuffix("qkv") + "out"]
        heads = values.view(-1, model.head_width)
        used = heads.any(dim=1, keepdim=True).expand_as(heads).flatten()
        return torch.cat([used, used, values])
    if name == "head":
        return torch.ones(model.vocabulary, dtype=torch.bool)
    later = [kept[other] for other in layers[layers.index(name) + 1 :] if other.endswith(("qkv", "up", "head"))]
    return torch.stack(later).any(dim=0)


def edges_of(model: GPT, name: str, kept: dict[str, Tensor]) -> int:
    """Count the weights of a layer between units of the circuit."""
    weight = layers_of(model)[name].weight
    return int(((weight != 0) & kept[name] & written(model, name, kept)[:, None]).sum())


def report(title: str, model: GPT, data: tuple[Tensor, Tensor]) -> None:
    """Print a row for each layer: its weights, its active units and its part of the circuit."""
    active: dict[str, float] = {}

    def count(name: str, inputs: Tensor) -> Tensor:
        """Count units above 1 % of the layer's largest that any weight reads."""
        read = (layers_of(model)[name].weight != 0).any(dim=0)
        active[name] = (((inputs.abs() > 0.01 * inputs.abs().max()) & read).sum(-1)).float().mean().item()
        return inputs

    with torch.no_grad():
        with_inputs(model, count, lambda: model(data[0]))
    kept, total = circuit(model, data), [0, 0, 0, 0]
    every = {name: torch.ones_like(units) for name, units in kept.items()}
    print(f"\n{title}: accuracy {accuracy(model, data, every, {n: u.float() for n, u in kept.items()}):.1%}")
    titles = f"{'weights':>10}{'non-zero':>10}{'units':>8}{'active per token':>18}{'circuit units':>15}{'edges':>8}"
    print(f"{'layer':30}{titles}")
    for name, layer in layers_of(model).items():
        weight, units = layer.weight, kept[name]
        edges = edges_of(model, name, kept)
        row = [weight.numel(), int(weight.count_nonzero()), int(units.sum()), edges]
        total = [sum(pair) for pair in zip(total, row, strict=True)]
        print(f"{name:30}{row[0]:10,}{row[1]:10,}{len(units):8}{active[name]:18.1f}{row[2]:15}{edges:8,}")
    print(f"{'all':30}{total[0]:10,}{total[1]:10,}{sum(map(len, kept.values())):8}{'':18}{total[2]:15}{total[3]:8,}")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sparsity", type=float, default=0.98)
    parser.add_argument("--steps", type=int, default=1000, help="a multiple of 100")
    parser.add_argument("--width", type=int, default=128, help="of the residual stream")
    options = parser.parse_args(arguments)
    data = examples(512, seed=1_000_000)
    for title, sparsity in (("dense", 0.0), (f"{options.sparsity:.1%} zeros", options.sparsity)):
        report(title, train(sparsity, options.steps, options.width), data)


if __name__ == "__main__":
    main()
