"""One step computes the same however it is run: in parts, compiled, replayed from a CUDA graph."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import acdc
from acdc.errors import ArgumentError
from acdc.models.transformer_xl import TransformerXL
from acdc.recipes.schema import Training
from acdc.train import experiment
from acdc.train.execution import Execution, choose
from acdc.train.step import Step, Totals, loss_curve
from tests.conformance.harness import DEVICE
from tests.train.problems import EAGER, outcome, recipe, stage

CPU = torch.device("cpu")
MODES = {"compiled": Execution(True, False, ())}
if DEVICE == "cuda":
    MODES |= {"graph": Execution(False, True, ()), "compiled graph": Execution(True, True, ())}


def gradients(parts: int, *, label_smoothing: float = 0.0) -> tuple[list[torch.Tensor], list[float]]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 3))
    totals = Totals(CPU)
    step = Step(model, Training(accumulate=parts, label_smoothing=label_smoothing), EAGER, totals, device=CPU, full=7)
    step(torch.randn(7, 3, 2, 2), torch.randint(3, (7,)))
    return [param.grad for param in model.parameters() if param.grad is not None], totals.values.tolist()


@pytest.mark.parametrize("parts", [2, 3, 7, 50])
def test_a_batch_in_parts_gives_the_batch_s_gradient(parts: int) -> None:
    """Parts of uneven size weigh by their size; there are never more parts than images."""
    whole, divided = gradients(1), gradients(parts)
    for one, other in zip(whole[0], divided[0], strict=True):
        torch.testing.assert_close(one, other)
    assert divided[1] == pytest.approx(whole[1])
    assert whole[1][2:] == [7, 1, 1]


def test_full_batches_go_the_fast_way_whichever_comes_first() -> None:
    """A run may be taken up just before an epoch's last batch, which is smaller."""
    model, seen = nn.Sequential(nn.Flatten(), nn.Linear(12, 3)), []
    step = Step(model, Training(), EAGER, Totals(CPU), device=CPU, full=4)
    step.fast = nn.Sequential(*model)
    step.fast.register_forward_hook(lambda module, inputs, output: seen.append(len(output)))
    for size in (2, 4, 4, 2):
        step(torch.randn(size, 3, 2, 2), torch.randint(3, (size,)))
    assert seen == [4, 4]


def test_cudnn_searches_no_kernels_for_the_last_batch_of_an_epoch() -> None:
    """A batch of another size is met once an epoch; a search takes as long as a whole start-up."""
    seen: list[tuple[int, bool]] = []
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 3))
    model.register_forward_hook(lambda *_: seen.append((len(_[2]), torch.backends.cudnn.benchmark)))
    step = Step(model, Training(), EAGER, Totals(CPU), device=CPU, full=4)
    with torch.backends.cudnn.flags(enabled=True, benchmark=True):
        for size in (4, 2, 4):
            step(torch.randn(size, 3, 2, 2), torch.randint(3, (size,)))
        assert torch.backends.cudnn.benchmark
    assert seen == [(4, True), (2, False), (4, True)]


@pytest.mark.long  # inductor takes 20 s for it on a CPU; test_sparsifier.py has the one test that always waits for it
@pytest.mark.parametrize("mode", MODES)
def test_dropout_draws_what_it_draws_eagerly(mode: str) -> None:
    device, losses = torch.device(DEVICE), []
    for execution in (EAGER, MODES[mode]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(12, 64), nn.Dropout(0.5), nn.ReLU(), nn.Linear(64, 3)).to(device)
        images, labels = torch.randn(8, 3, 2, 2, device=device), torch.randint(3, (8,), device=device)
        totals = Totals(device)
        with experiment.reproducible(recipe(), device):
            step = Step(model, Training(), execution, totals, device=device, full=8)
            for _ in range(6):  # the last are replayed where there is a graph
                step(images, labels)
        losses.append(totals.values[0].item())
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


def test_label_smoothing_changes_the_loss() -> None:
    assert gradients(1, label_smoothing=0.3)[1][0] != pytest.approx(gradients(1)[1][0])


def test_label_smoothing_is_no_part_of_an_evaluation(tmp_path: Path) -> None:
    """With a rate of nearly 0 the models are the same, and so is what tests say of them."""
    still = ("optimizer.lr=1e-12", "optimizer.weight_decay=0", "train.epochs=4")
    plain, smooth = (
        next(stage(tmp_path / name, *still, f"train.label_smoothing={by}").run())
        for name, by in (("plain", 0.0), ("smooth", 0.2))
    )
    assert smooth.loss != pytest.approx(plain.loss, abs=1e-3)
    assert (smooth.test_loss, smooth.test_accuracy) == pytest.approx((plain.test_loss, plain.test_accuracy), rel=1e-5)


def test_totals_remember_the_first_loss_that_is_not_finite() -> None:
    totals = Totals(CPU)
    for loss in (1.0, 2.0, float("nan"), 3.0):
        totals.add(torch.tensor(loss), torch.tensor(1), 2)
    assert totals.values[1:].tolist() == [4, 8, 0, 2]
    totals.reset()
    assert totals.values.tolist() == [0, 0, 0, 1, 0]


def test_the_loss_curve_has_at_most_100_points_each_the_mean_over_its_samples() -> None:
    totals = Totals(CPU, steps=250)  # three steps make a point, and the last has one
    assert loss_curve(totals.curve) is None  # no step yet
    for step in range(250):
        totals.add(torch.tensor(float(step)), torch.tensor(0), 4 if step % 3 else 8)
    curve = loss_curve(totals.curve)
    assert curve is not None
    assert len(curve) == 84
    assert curve[:2] == (0.75, 3.75)  # (8·0 + 4·1 + 4·2) / 16, and three more
    assert curve[-1] == 249


def test_the_loss_curve_of_an_epoch_resumed_inside_is_that_of_the_whole_epoch() -> None:
    part, later, older = (Totals(CPU, steps=6) for _ in range(3))
    losses = [torch.tensor(value) for value in (3.0, 2.0, 2.5, 1.0, 1.5, 0.5)]
    for loss in losses[:4]:
        part.add(loss, torch.tensor(0), 2)
    later.load(part.values.tolist(), part.curve.tolist(), step=4)
    older.load(part.values.tolist(), None, step=4)  # from a checkpoint of an earlier version
    for totals in (later, older):
        for loss in losses[4:]:
            totals.add(loss, torch.tensor(0), 2)
    assert loss_curve(later.curve) == (3.0, 2.0, 2.5, 1.0, 1.5, 0.5)
    assert loss_curve(older.curve) is None


@pytest.mark.parametrize("mode", MODES)
def test_the_same_run_as_eagerly_within_rounding(mode: str, tmp_path, without_inductor) -> None:
    """Through a dense and two compressed phases, the smaller batch at each epoch's end included."""
    settings = ("train.batch_size=16", "data.train=70")
    with experiment.reproducible(recipe(*settings), torch.device(DEVICE)):  # on a GPU a stream that can be captured
        eager = list(stage(tmp_path / "a", *settings).run())
        other = list(stage(tmp_path / "b", *settings, execution=MODES[mode]).run())
    assert [row.kind for row in eager] == ["dense", "sparse", "dense", "sparse"]
    for one, two in zip(eager, other, strict=True):
        assert two.loss == pytest.approx(one.loss, rel=2e-2)  # rounding grows from step to step
        assert two.sparsity == pytest.approx(one.sparsity, abs=1e-3)
    assert other[0].loss == pytest.approx(eager[0].loss, rel=1e-5)


@pytest.mark.parametrize("mode", MODES)
def test_images_that_grow_are_captured_and_compiled_anew(mode: str, tmp_path, without_inductor) -> None:
    settings = ("data.first_size=4", "data.size_step=2", "data.full_size_by=0.75")
    with experiment.reproducible(recipe(*settings), torch.device(DEVICE)):
        eager = list(stage(tmp_path / "a", *settings).run())
        other = list(stage(tmp_path / "b", *settings, execution=MODES[mode]).run())
    assert [row.image_size for row in other] == [4, 4, 6, 8]
    for one, two in zip(eager, other, strict=True):
        assert two.loss == pytest.approx(one.loss, rel=2e-2)
        assert two.test_loss == pytest.approx(one.test_loss, rel=5e-2)


@pytest.mark.parametrize("mode", ["eager", *MODES])
def test_one_seed_gives_the_same_bits_again_and_another_does_not(mode: str, tmp_path, without_inductor) -> None:
    def rows(name: str, seed: int) -> list[tuple]:
        settings = ("train.deterministic=true", f"run.seeds=[{seed}]")
        with experiment.reproducible(recipe(*settings), torch.device(DEVICE)):
            return outcome(list(stage(tmp_path / name, *settings, execution=MODES.get(mode, EAGER)).run()))

    assert rows("a", 0) == rows("b", 0) != rows("c", 1)


def test_a_capture_meets_only_compiled_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """The step that begins a phase runs uncompiled; what changed with it, such as dropout, is compiled in the next."""
    capturing, compiled, captures = [False], [], []

    class Capture:
        def __init__(self, graph: object, stream: object) -> None: ...

        def __enter__(self) -> None:
            capturing[0] = True
            captures.append(sparsifier.phase.index)

        def __exit__(self, *error: object) -> None:
            capturing[0] = False

    class Graph:
        def replay(self) -> None: ...

    def backend(graph: torch.fx.GraphModule, inputs: object) -> Callable[..., object]:
        assert not capturing[0], "compiled inside a capture"
        compiled.append(sparsifier.phase.index)
        return graph.forward

    for name, fake in {"CUDAGraph": Graph, "graph": Capture, "current_stream": lambda device: None}.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 64), nn.Dropout(0.5), nn.ReLU(), nn.Linear(64, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    phases = acdc.Schedule.from_phases([("dense", "6st"), ("sparse", "6st"), ("dense", "6st"), ("sparse", "6st")])
    sparsifier = acdc.attach(model, optimizer, acdc.ACDC(sparsity=0.5, schedule=phases, dropout="scaled"))
    step = Step(model, Training(), Execution(False, True, ()), Totals(CPU), device=CPU, full=8)
    step.fast = torch.compile(model, dynamic=False, backend=backend)
    for _ in range(24):
        sparsifier.begin_step()
        step(torch.randn(8, 3, 2, 2), torch.randint(3, (8,)), sparsifier.phase.index)
        optimizer.step()
    assert captures == [0, 1, 2, 3]
    assert compiled == [0, 3]  # for the rates of the final phase


# What is chosen, and why

CUDA = torch.device("cuda")


@pytest.fixture
def tools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("acdc.train.execution._toolchain", lambda device: None)


@pytest.mark.parametrize(
    ("device", "steps", "world", "settings", "compiled", "graphs", "words"),
    [
        (CPU, 10**6, 1, {}, False, False, ("they need a GPU", "it pays off only on a GPU")),
        (CUDA, 10**6, 1, {}, True, True, ("a whole step is launched at once", "1,000,000 steps")),
        (CUDA, 100, 1, {}, False, True, ("are too few to repay",)),
        (CUDA, 10**6, 2, {}, False, False, ("several processes exchange gradients", "several processes")),
        (CUDA, 10**6, 1, {"precision": "fp16"}, True, False, ("GradScaler",)),
        (CPU, 10, 1, {"compile": "on"}, True, False, ("torch.compile: on (as requested)",)),
        (CUDA, 10**6, 1, {"compile": "off", "cuda_graphs": "off"}, False, False, ("off (as requested)",)),
    ],
)
def test_it_says_what_it_chose_and_why(tools, device, steps, world, settings, compiled, graphs, words) -> None:
    chosen = choose(Training(**settings), device, steps=steps, world=world)
    assert (chosen.compile, chosen.graphs) == (compiled, graphs)
    for word in words:
        assert word in "\n".join(chosen.why)


def test_each_size_of_images_is_compiled_for(tools) -> None:
    settings = {"device": CUDA, "world": 1}
    assert choose(Training(), **settings, steps=60_000, sizes=3).compile
    few = choose(Training(), **settings, steps=59_999, sizes=3)
    assert not few.compile
    assert few.graphs
    assert "59,999 steps are too few to repay compiling for 3 sizes of images" in "\n".join(few.why)
    assert not choose(Training(), **settings, steps=10**9, sizes=7).compile
    assert choose(Training(compile="on"), **settings, steps=1, sizes=6).compile
    with pytest.raises(ArgumentError, match=r"train.compile='on': training images grow through 7 sizes.*size_step"):
        choose(Training(compile="on"), **settings, steps=1, sizes=7)


@pytest.mark.parametrize(("cutoffs", "graphs"), [([], True), ([10], False)])
def test_shapes_that_depend_on_the_data_are_not_captured(tools, cutoffs: list[int], graphs: bool) -> None:
    model = TransformerXL(20, layers=1, width=8, heads=2, head_width=4, feedforward=8, cutoffs=cutoffs)
    chosen = choose(Training(), CUDA, steps=100, world=1, model=model)
    assert chosen.graphs == graphs
    assert ("shapes in AdaptiveSoftmax depend on the data" in chosen.why[0]) != graphs


def test_what_cannot_be_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ArgumentError, match=r"train.cuda_graphs='on': impossible here: they need a GPU; write"):
        choose(Training(cuda_graphs="on"), CPU, steps=1, world=1)
    monkeypatch.setattr("acdc.train.execution._toolchain", lambda device: "there is no C++ compiler")
    with pytest.raises(ArgumentError, match=r"train.compile='on': impossible here: there is no C\+\+ compiler"):
        choose(Training(compile="on"), CPU, steps=1, world=1)


def test_a_step_whose_gradients_are_looked_at_is_not_replayed(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph masks gradients as it was captured: RigL would see zeros where it looks for what to grow."""
    run = stage(tmp_path, "method.name=rigl", "method.every=3st", "train.epochs=4")
    seen, call = [], run._step.__call__

    class Spy:
        teacher = None

        def __call__(self, images, labels, phase=None, *, eagerly=False):
            seen.append(eagerly)
            call(images, labels, phase, eagerly=eagerly)

    monkeypatch.setattr(run, "_step", Spy())
    list(run.run())
    last = int(0.75 * 20)
    assert [step for step, eagerly in enumerate(seen) if eagerly] == [step - 1 for step in range(3, last + 1, 3)]
