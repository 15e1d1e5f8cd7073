"""Contracts of every method that trains dense weights behind the model's."""

import io
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

import acdc
from acdc import methods
from acdc.core import latent as latent_weights
from acdc.core.latent import Bundle
from tests.conformance.harness import OPTIMIZERS, STEPS_PER_EPOCH, TOTAL, Net, assert_same_bits, batch
from tests.warned import LATE_STARTS

KNOBS = {
    "top_kast": {"sparsity": 0.8, "backward": 0.6, "every": "3st"},
    "dpf": {"sparsity": 0.8, "every": "2st"},
    "sr_ste": {},
    "str": {"start": -4.0, "decay": 0.05},
    "sparse_vd": {"samples": 100, "rate": 0.5, "rise": 0.2},
    "quantised": {"bits": 3},
}
every_method = pytest.mark.parametrize("name", KNOBS)
SGD = OPTIMIZERS["SGD momentum, Nesterov, weight decay"]


class Run:
    def __init__(self, name: str, make_optimizer: Callable = SGD, **knobs) -> None:
        torch.manual_seed(0)
        self.model = Net()
        self.optimizer = make_optimizer(self.model.parameters())
        method = methods.build(name, **{"epochs": 6, **KNOBS[name], **knobs})
        self.sparsifier = acdc.attach(self.model, self.optimizer, method, steps_per_epoch=STEPS_PER_EPOCH)

    def step(self, step: int) -> None:
        self.optimizer.zero_grad()
        self.loss(step).backward()
        self.optimizer.step()

    def loss(self, step: int) -> Tensor:
        return F.cross_entropy(self.model(batch(step)[0]), batch(step)[1])

    def train(self, first: int = 0, last: int = TOTAL) -> "Run":
        for step in range(first, last):
            self.step(step)
        return self

    def state(self) -> dict:
        parts = {"model": self.model, "optimizer": self.optimizer, "sparsifier": self.sparsifier}
        return {key: part.state_dict() for key, part in parts.items()}

    def bits(self) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        collect("", self.state(), found)
        return found


def collect(path: str, value: object, found: dict[str, Tensor]) -> None:
    """Every tensor and number of nested state, by path."""
    if isinstance(value, Tensor | int | float):
        found[path] = torch.as_tensor(value).clone()
    elif isinstance(value, dict):
        for key, item in value.items():
            collect(f"{path}.{key}", item, found)


def view_of(sparsifier: acdc.Sparsifier, layer: str, dense: Tensor) -> Tensor:
    """One layer's, as if it were alone."""
    alone = Bundle([w for w in sparsifier.layers.weights if w.name == layer], group=0)
    flat = alone.join({layer: dense})
    out = torch.empty_like(flat)
    sparsifier.method.effective_weights(sparsifier.context, alone, flat, out)
    return alone.split(out)[0]


@every_method
def test_between_steps_the_model_holds_the_view(name):
    run = Run(name)
    for step in range(TOTAL):
        run.step(step)
        sparsifier = run.sparsifier
        if sparsifier.phase.kind == "dense":
            assert sparsifier.masks == {}
            continue
        for layer, dense in sparsifier.context.weights.items():
            shown = run.model.get_parameter(layer)
            assert torch.equal(shown, view_of(sparsifier, layer, dense))
            assert torch.equal(sparsifier.masks[layer] & (shown != 0), shown != 0)
        before = run.bits()
        run.model.eval()
        run.model(batch(step)[0])  # evaluation, with gradients on, changes nothing
        run.model.train()
        assert_same_bits(before, run.bits())


@every_method
def test_layers_by_themselves_train_as_in_a_bundle(name, monkeypatch):
    """A layer alone is worked on in its own memory, several in a copy. Noise is a bundle's: there is next to none."""
    knobs = {"start": -40.0, "rate": 1e-3, "samples": 10**9} if name == "sparse_vd" else {}
    together = Run(name, **knobs).train()
    monkeypatch.setattr(latent_weights, "_CPU_SIZE", 1)
    alone = Run(name, **knobs).train()
    for key, value in together.model.state_dict().items():
        torch.testing.assert_close(alone.model.state_dict()[key], value)
    for layer, weight in together.sparsifier.context.weights.items():
        torch.testing.assert_close(alone.sparsifier.context.weights[layer], weight)


@every_method
@pytest.mark.parametrize("stop", [1, 4, 7, 8, 13, 23])
def test_resume_is_exact_anywhere(name, stop):
    whole = Run(name).train()
    first = Run(name).train(last=stop)
    file = io.BytesIO()
    torch.save(first.state(), file)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    second = Run(name)
    for key, part in (("model", second.model), ("optimizer", second.optimizer), ("sparsifier", second.sparsifier)):
        part.load_state_dict(state[key])
    second.train(first=stop)
    assert_same_bits(whole.bits(), second.bits())


@pytest.mark.parametrize(("name", "lacks"), [("top_kast", "moves"), ("sparse_vd", "log_alpha")])
@pytest.mark.parametrize("stop", [7, 8])
def test_a_checkpoint_without_what_can_be_made_again_resumes_exactly(name, lacks, stop):
    """As before these were kept."""
    whole, first, second = Run(name).train(), Run(name).train(last=stop), Run(name)
    state = first.state()
    del state["sparsifier"]["memory"][lacks]
    for key, part in (("model", second.model), ("optimizer", second.optimizer), ("sparsifier", second.sparsifier)):
        part.load_state_dict(state[key])
    assert_same_bits(whole.bits(), second.train(first=stop).bits())


@every_method
@pytest.mark.parametrize("optimizer", ["AdamW", "SGD fused", "RMSprop", "one that moves zeros (enforced)"])
def test_finish_gives_the_view(name, optimizer):
    run = Run(name, OPTIMIZERS[optimizer]).train()
    result = run.sparsifier.finish()
    plain = Net()
    plain.load_state_dict(result.sparse)
    weights = dict(plain.named_parameters())
    for layer, mask in result.masks.items():
        assert not weights[layer][~mask].any()
    size = sum(mask.numel() for mask in result.masks.values())
    if run.sparsifier.method.sparsity is not None and name != "sr_ste":
        assert sum(int(mask.sum()) for mask in result.masks.values()) == size - round(0.8 * size)
    if name == "sr_ste":
        assert result.sparsity == 0.5
        assert set(result.masks) == {"conv2.weight", "fc.weight"}
    if name != "quantised":
        assert run.sparsifier.history[-1]["sparsity"] < 1


@every_method
def test_detach_leaves_the_view(name):
    run = Run(name).train()
    before = {key: value.clone() for key, value in run.model.state_dict().items()}
    run.sparsifier.detach()
    assert_same_bits(before, dict(run.model.state_dict()))
    run.step(0)
    weight = run.model.conv2.weight.detach()
    assert not torch.equal(weight, before["conv2.weight"])
    assert not run.optimizer._optimizer_step_pre_hooks


@every_method
@pytest.mark.parametrize("fused", [False, True])
def test_a_gradient_scaler_changes_nothing_and_its_skipped_steps_neither(name, fused):
    def make(params):
        return torch.optim.SGD(params, lr=0.05, momentum=0.9, weight_decay=1e-2, fused=fused)

    plain, scaled = Run(name, make), Run(name, make)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=10_000)
    for step in range(TOTAL):
        plain.step(step)
        if step in (6, 13):
            dense = {layer: weight.clone() for layer, weight in scaled.sparsifier.context.weights.items()}
            statistics = {key: value.clone() for key, value in scaled.model.named_buffers()}
            scaled.optimizer.zero_grad()
            scaler.scale(scaled.loss(step) * float("inf")).backward()
            scaler.step(scaled.optimizer)
            scaler.update()
            assert scaled.sparsifier.step == step
            if scaled.sparsifier.phase.kind == "sparse" and name != "quantised":
                assert_same_bits(dense, scaled.sparsifier.context.weights)
            scaler.update(1024.0)
            for key, value in scaled.model.named_buffers():
                value.copy_(statistics[key])
        scaled.optimizer.zero_grad()
        scaler.scale(scaled.loss(step)).backward()
        scaler.step(scaled.optimizer)
        scaler.update()
    assert_same_bits(plain.bits(), scaled.bits())


@every_method
def test_a_closure_is_refused(name):
    run = Run(name).train(last=TOTAL - 1)
    with pytest.raises(RuntimeError, match=r"call the closure yourself, then optimizer\.step\(\)"):
        run.optimizer.step(lambda: run.loss(TOTAL - 1))


@pytest.mark.parametrize("name", ["dpf", "sr_ste", "str", "quantised"])
def test_weight_decay_acts_on_the_dense_weights(name):
    knobs = {"sr_ste": {"decay": 0.0}}.get(name, {})
    run = Run(name, lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.5), **knobs)
    run.train(last=5)
    before = {layer: weight.clone() for layer, weight in run.sparsifier.context.weights.items()}
    run.optimizer.zero_grad()
    (run.loss(5) * 0).backward()
    run.optimizer.step()
    for layer, dense in run.sparsifier.context.weights.items():
        torch.testing.assert_close(dense, before[layer] * (1 - 0.1 * 0.5))


class Functional(nn.Module):
    """A loop that never calls a module: phases and updates are noticed at backward only."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one, self.two = nn.Linear(8, 16), nn.Linear(16, 4)


@every_method
@LATE_STARTS
def test_loops_that_call_no_module(name):
    model = Functional()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    method = methods.build(name, epochs=6, **KNOBS[name])
    sparsifier = acdc.attach(model, optimizer, method, steps_per_epoch=STEPS_PER_EPOCH)
    generator = torch.Generator().manual_seed(0)
    for _ in range(TOTAL):
        x = torch.randn(4, 8, generator=generator)
        hidden = F.relu(F.linear(x, model.one.weight, model.one.bias))
        optimizer.zero_grad()
        F.linear(hidden, model.two.weight, model.two.bias).square().sum().backward()
        optimizer.step()
    result = sparsifier.finish()
    if method.sparsity:
        assert result.sparsity == pytest.approx(method.sparsity, abs=0.01)


@every_method
@LATE_STARTS
def test_what_a_backward_pass_in_evaluation_began_is_shown_as_training_goes_on(name):
    schedule = acdc.Schedule.from_phases([("dense", "2st"), ("sparse", "4st")])
    run = Run(name, epochs=None, schedule=schedule).train(last=2)
    run.model.eval()
    run.loss(2).backward()
    run.model.train()
    sparsifier = run.sparsifier
    assert sparsifier.context.forward_already_ran
    assert_same_bits(
        sparsifier.context.weights, {layer: run.model.get_parameter(layer) for layer in sparsifier.context.weights}
    )
    sparsifier.begin_step()
    for layer, dense in sparsifier.context.weights.items():
        assert torch.equal(run.model.get_parameter(layer), view_of(sparsifier, layer, dense))
    assert not sparsifier.context.forward_already_ran


@every_method
def test_averages_of_weights_can_be_pruned_alike(name):
    run = Run(name).train()
    other = Net()
    run.sparsifier.apply_masks(other)
    for layer, mask in run.sparsifier.masks.items():
        assert not other.get_parameter(layer)[~mask].any()


@every_method
def test_a_dense_phase_takes_the_weights_back(name, monkeypatch):
    """Quantised AC/DC has such phases; the others refuse them, and would be no worse off."""
    monkeypatch.setattr(methods.find(name), "alternates", True)
    schedule = acdc.Schedule.from_phases([("dense", "4st"), ("sparse", "8st"), ("dense", "4st"), ("sparse", "8st")])
    torch.manual_seed(0)
    model = Net()
    optimizer = SGD(model.parameters())
    method = methods.build(name, schedule=schedule, **KNOBS[name])
    sparsifier = acdc.attach(model, optimizer, method, steps_per_epoch=STEPS_PER_EPOCH)
    for step in range(24):
        dense = {layer: weight.clone() for layer, weight in sparsifier.context.weights.items()}
        sparsifier.begin_step()
        if step == 12:
            assert sparsifier.phase.kind == "dense"
            shown = {layer: model.get_parameter(layer).detach() for layer in dense}
            if name == "quantised":
                assert all(len(row.unique()) <= 7 for layer in shown.values() for row in layer.flatten(1))
            else:
                assert_same_bits(dense, shown)
        optimizer.zero_grad()
        F.cross_entropy(model(batch(step)[0]), batch(step)[1]).backward()
        optimizer.step()
    assert sparsifier.finish().masks
