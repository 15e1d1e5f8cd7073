"""AC/DC with Accelerate: a multilayer perceptron learns which of four inputs is largest.

Lines marked + are all acdc needs.
"""

import sys

import torch
from accelerate import Accelerator  # pyright: ignore[reportMissingImports]
from accelerate.utils import set_seed  # pyright: ignore[reportMissingImports]
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import acdc  # +

EPOCHS, ACCUMULATION = 20, 2
folder = sys.argv[1] if len(sys.argv) > 1 else "sparse-accelerate"
set_seed(0)
accelerator = Accelerator(gradient_accumulation_steps=ACCUMULATION)
x = torch.randn(1024, 16)
y = x[:, :4].argmax(1)
model = nn.Sequential(nn.Linear(16, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
loader = DataLoader(TensorDataset(x[:768], y[:768]), batch_size=32, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
steps = len(loader) // ACCUMULATION
sparsifier = acdc.attach(model, optimizer, acdc.ACDC(sparsity=0.9, epochs=EPOCHS), steps_per_epoch=steps)  # +
accelerator.register_for_checkpointing(sparsifier)  # +  save_state and load_state now include it

for _ in range(EPOCHS):
    for inputs, labels in loader:
        with accelerator.accumulate(model):
            accelerator.backward(nn.functional.cross_entropy(model(inputs), labels))
            optimizer.step()
            optimizer.zero_grad()
    accelerator.save_state(folder)

result = sparsifier.finish()  # +
accelerator.print(result)
for name, state in (("sparse", result.sparse), ("dense", result.dense)):
    accelerator.unwrap_model(model).load_state_dict(state)
    with torch.no_grad():
        right = model(x[768:].to(accelerator.device)).argmax(1).cpu() == y[768:]
    accelerator.print(f"{name:6}  accuracy {right.float().mean():.1%}")
