"""AC/DC in Lightning: a multilayer perceptron learns which of four inputs is largest.

Lines marked + are all acdc needs.
"""

import sys
from typing import Any

import lightning.pytorch as pl  # pyright: ignore[reportMissingImports]
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import acdc  # +
from acdc.integrations.lightning import SparsifierCallback  # +


class Classifier(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 4))

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


pl.seed_everything(0)
x = torch.randn(1024, 16)
y = x[:, :4].argmax(1)
model, loader = Classifier(), DataLoader(TensorDataset(x[:768], y[:768]), batch_size=64, shuffle=True)
callback = SparsifierCallback(acdc.ACDC(sparsity=0.9, epochs=20))  # +
trainer = pl.Trainer(
    max_epochs=20,
    callbacks=[callback],  # +
    accelerator="cpu",
    logger=False,
    enable_progress_bar=False,
    default_root_dir=sys.argv[1] if len(sys.argv) > 1 else "sparse-lightning",
)
trainer.fit(model, loader)

print(callback.result)
for name, state in (("sparse", callback.result.sparse), ("dense", callback.result.dense)):
    assert state is not None  # only methods without a dense phase have no twin
    model.load_state_dict(state)
    with torch.no_grad():
        print(f"{name:6}  accuracy {(model.net(x[768:]).argmax(1) == y[768:]).float().mean():.1%}")
