"""AC/DC in a loop of timm's shape: no decay of biases and norms, a rate per update, an average, checkpoints to resume.

    python examples/timm_loop.py OUT [--epochs 20] [--stop-after 8]        # again without --stop-after: it resumes

Lines marked + are all acdc needs. timm's own create_optimizer_v2, create_scheduler_v2 and ModelEmaV3 fit in the same
places: its optimizers are torch's, with hooks. (timm imports torchvision, so the tests run this file, and not timm.)
"""

import argparse
import math
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset

import acdc  # +


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict]:
    """Split parameters as timm does: biases and norms, which are vectors, do not decay."""
    decay = [param for param in model.parameters() if param.ndim > 1]
    rest = [param for param in model.parameters() if param.ndim <= 1]
    return [{"params": decay, "weight_decay": weight_decay}, {"params": rest, "weight_decay": 0.0}]


def cosine(updates: int, warmup: int) -> object:
    return lambda update: min((update + 1) / warmup, 0.5 * (1 + math.cos(math.pi * update / updates)))


@torch.no_grad()
def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    return (model.eval()(x).argmax(1) == y).float().mean().item()


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--stop-after", type=int, help="end after so many epochs, to try resuming")
    options = parser.parse_args(arguments)
    torch.manual_seed(0)
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8) / 16, torch.tensor(labels)
    order = torch.randperm(len(x))
    train, test = order[:1400], order[1400:]
    shuffling = torch.Generator()
    loader = DataLoader(TensorDataset(x[train], y[train]), 64, shuffle=True, drop_last=True, generator=shuffling)

    model = acdc.models.build("digits_net", classes=10, in_channels=1, seed=0)
    optimizer = torch.optim.AdamW(parameter_groups(model, 0.05), lr=3e-3)
    updates = options.epochs * len(loader)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, cosine(updates, warmup=len(loader)))  # pyright: ignore[reportArgumentType]
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
    sparsifier = acdc.attach(  # +
        model, optimizer, acdc.ACDC(sparsity=0.9, epochs=options.epochs), steps_per_epoch=len(loader)
    )

    path, first = options.out / "last.pth.tar", 0
    if path.exists():
        checkpoint = torch.load(path, weights_only=True)
        model.load_state_dict(checkpoint["state_dict"])
        average.load_state_dict(checkpoint["state_dict_ema"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        scheduler.load_state_dict(checkpoint["lr_scheduler"])
        sparsifier.load_state_dict(checkpoint["sparsifier"])  # +
        first = checkpoint["epoch"] + 1
    options.out.mkdir(parents=True, exist_ok=True)

    for epoch in range(first, min(options.epochs, options.stop_after or options.epochs)):
        shuffling.manual_seed(epoch)
        model.train()
        for inputs, targets in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), targets, label_smoothing=0.1).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            scheduler.step()
            average.update_parameters(model)
        sparsifier.apply_masks(average)  # +  an average remembers weights that are pruned now
        of_model, of_average = accuracy(model, x[test], y[test]), accuracy(average, x[test], y[test])
        print(f"epoch {epoch:2}  {sparsifier.phase.name:16}  accuracy {of_model:.1%}  of the average {of_average:.1%}")
        checkpoint = {
            "epoch": epoch,
            "state_dict": model.state_dict(),
            "state_dict_ema": average.state_dict(),
            "optimizer": optimizer.state_dict(),
            "lr_scheduler": scheduler.state_dict(),
            "sparsifier": sparsifier.state_dict(),  # +
        }
        torch.save(checkpoint, path.with_suffix(".tmp"))
        path.with_suffix(".tmp").rename(path)

    if sparsifier.step == sparsifier.total_steps:
        print(sparsifier.finish())  # +
        print(f"sparse  accuracy {accuracy(model, x[test], y[test]):.1%}")


if __name__ == "__main__":
    main()
