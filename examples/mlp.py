"""AC/DC in a plain loop: a multilayer perceptron on scikit-learn's digits. Lines marked + are all acdc needs."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import acdc  # +

torch.manual_seed(0)
images, labels = load_digits(return_X_y=True)
x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
order = torch.randperm(len(x))
train, test = order[:1400], order[1400:]
loader = DataLoader(TensorDataset(x[train], y[train]), batch_size=64, shuffle=True)

model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
sparsifier = acdc.attach(model, optimizer, acdc.ACDC(sparsity=0.9, epochs=20), steps_per_epoch=len(loader))  # +
print(sparsifier.method.schedule)

for epoch in range(20):
    for images, labels in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    with torch.no_grad():
        accuracy = (model(x[test]).argmax(1) == y[test]).float().mean()
    print(f"epoch {epoch:2}  {sparsifier.phase.name:16}  sparsity {sparsifier.sparsity:6.2%}  accuracy {accuracy:.2%}")

result = sparsifier.finish()  # +  result.sparse and result.dense are plain state dicts
print(sparsifier.summary(x[:1]))
for name, state in (("sparse", result.sparse), ("dense twin", result.dense)):
    assert state is not None  # only methods without a dense phase have no twin
    model.load_state_dict(state)
    with torch.no_grad():
        print(f"{name:10}  accuracy {(model(x[test]).argmax(1) == y[test]).float().mean():.2%}")
