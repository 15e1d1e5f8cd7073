"""A user's training script: type checkers know every name in it, and it runs."""

from pathlib import Path

import torch
from torch import Tensor, nn

import acdc


def batches(count: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(8, 16, generator=generator) for _ in range(count)]
    return [(batch, (batch.sum(1) > 0).long()) for batch in inputs]


def train(method: acdc.Method, folder: Path, epochs: int = 4) -> acdc.Result:
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 2))
    optimizer = acdc.Lamb(model.parameters(), lr=0.01)
    loader = batches(5)
    folder.mkdir()
    sparsifier = acdc.attach(model, optimizer, method, steps_per_epoch=len(loader))
    for _ in range(epochs):
        hits = torch.tensor(0)
        for inputs, labels in loader:
            logits = model(inputs)
            optimizer.zero_grad()
            nn.functional.cross_entropy(logits, labels).backward()
            optimizer.step()
            hits += (logits.argmax(1) == labels).sum()
        if sparsifier.phase.kind == "dense":
            sparsifier.report_metric(hits / (8 * len(loader)))
        torch.save(sparsifier.state_dict(), folder / "sparsifier.pt")
    result = sparsifier.finish()
    print(sparsifier.summary(loader[0][0]))
    result.save(folder)
    sparsifier.detach()
    if result.dense is not None:
        for step in acdc.finetune_dense(result, model, optimizer):
            inputs, labels = loader[step % len(loader)]
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
    read = acdc.Result.load(folder)
    model.load_state_dict(read.sparse)
    return read


def main(folder: Path) -> list[acdc.Result]:
    schedule = acdc.Schedule.from_phases([("dense", "1ep"), ("sparse", "1ep"), ("dense", "1ep"), ("sparse", "1ep")])
    methods = [
        acdc.ACDC(sparsity=0.5, schedule=schedule, criterion="saliency", twin="best"),
        acdc.ACDC.paper(0.5, epochs=4, criterion=acdc.criteria.WoodFisher(steps=2), twin="best"),
        acdc.ACDC(schedule=schedule, pattern=acdc.NM(2, 4), exclude=["2"], twin="best"),
    ]
    results = [train(method, folder / f"acdc{index}") for index, method in enumerate(methods)]
    return [*results, train(acdc.methods.RigL(sparsity=0.5, epochs=4, every="2st"), folder / "rigl")]


if __name__ == "__main__":
    main(Path.cwd())
