import io
import math
from collections.abc import Sequence

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

import acdc
from acdc import criteria
from acdc.criteria import Magnitude, Preconditioned, Saliency, Snip, SynFlow, WoodFisher
from acdc.criteria.woodfisher import add_gradient_
from acdc.methods.dpf import DPF
from acdc.methods.gmp import GMP
from acdc.methods.one_shot import OneShot
from tests.conformance.harness import OPTIMIZERS, STEPS_PER_EPOCH, TOTAL, Net, assert_same_bits, batch
from tests.methods.tiny import Tiny, sparse_for
from tests.warned import warned

SHAPE = (1, 2, 6, 6)
KNOBS = {"synflow": {"shape": SHAPE, "rounds": 3}, "woodfisher": {"steps": 3, "block": 8}, "saliency": {"steps": 2}}


def two_phases(dense: int, sparse: int) -> acdc.Schedule:
    return acdc.Schedule.from_phases([("dense", f"{dense}st"), ("sparse", f"{sparse}st")])


def pruned_by(criterion, weights: list[float], gradients: list[list[float]], **knobs) -> Tiny:
    """A run that sees these gradients, with a learning rate of 0, and then compresses to half."""
    schedule = two_phases(len(gradients), 2)
    t = Tiny(acdc.ACDC(sparsity=0.5, schedule=schedule, criterion=criterion, **knobs), weights, lr=0.0)
    for gradient in gradients:
        t.step(gradient)
    t.begin()
    return t


# By hand


class _Adaptive:
    """Two layers under an adaptive optimizer, and the masks of a compression after two steps that move nothing."""

    def __init__(
        self, new_optimizer, criterion="preconditioned", first=(4, 3, 2, -1), second=(1, 0.9, 0.8, 0.7)
    ) -> None:
        model = nn.Sequential(nn.Linear(4, 1, bias=False), nn.Linear(4, 1, bias=False))
        with torch.no_grad():
            for param, row in zip(model.parameters(), (first, second), strict=True):
                param.copy_(torch.tensor([row]))
        optimizer = new_optimizer(model.parameters())
        method = acdc.ACDC(sparsity=0.5, schedule=two_phases(2, 2), criterion=criterion)
        s = acdc.attach(model, optimizer, method)
        for _ in range(2):
            s.begin_step()
            for param, row in zip(model.parameters(), ([1e-4, 1.0, 16.0, 81.0], [1.0] * 4), strict=True):
                param.grad = torch.tensor([row])
            optimizer.step()
        self.state = [{key: value.clone() for key, value in optimizer.state[p].items()} for p in model.parameters()]
        self.scores = s.method.criterion.scores(s.context, s.context.budgets)  # pyright: ignore[reportAttributeAccessIssue]
        self.unchanged = all(
            torch.equal(value, optimizer.state[param][key])
            for param, state in zip(model.parameters(), self.state, strict=True)
            for key, value in state.items()
        )
        s.begin_step()
        self.masks = ["".join("01"[kept] for kept in mask.flatten().tolist()) for mask in s.masks.values()]


@pytest.mark.parametrize(
    "new_optimizer",
    [
        lambda params: torch.optim.Adam(params, lr=0.0),
        lambda params: torch.optim.AdamW(params, lr=0.0, amsgrad=True),
        lambda params: torch.optim.RMSprop(params, lr=0.0),
        lambda params: torch.optim.RMSprop(params, lr=0.0, momentum=0.9),
        lambda params: torch.optim.Adagrad(params, lr=0.0),
    ],
    ids=["Adam", "AMSGrad", "RMSprop", "RMSprop with momentum", "Adagrad"],
)
def test_preconditioned_by_hand(new_optimizer):
    """v ∝ g²: |θ|·v^¼ ∝ [4, 3, 2, 1]·[.01, 1, 4, 9] = [.04, 3, 8, 9], and |θ| in the other layer."""
    run = _Adaptive(new_optimizer)
    scores = torch.cat([score.flatten() for score in run.scores.values()]).abs()  # magnitudes rank
    torch.testing.assert_close(
        scores / scores[4], torch.tensor([0.04, 3, 8, 9, 1, 0.9, 0.8, 0.7]), rtol=1e-4, atol=1e-6
    )
    assert run.masks == ["0111", "1000"]
    assert run.unchanged, "the optimizer's state is only read"


@pytest.mark.parametrize(
    "new_optimizer",
    [lambda params: torch.optim.SGD(params, lr=0.0, momentum=0.9), lambda params: torch.optim.Adadelta(params, lr=0.0)],
    ids=["SGD", "Adadelta"],
)
def test_preconditioned_is_magnitude_where_no_optimizer_keeps_squares(new_optimizer):
    run = _Adaptive(new_optimizer, first=(4, 3, 2, -0.5))
    assert run.scores is None
    assert run.masks == ["1110", "1000"]


def test_preconditioned_is_magnitude_if_one_weight_has_no_squares():
    """Scores of layers are compared, and |θ| with |θ|·v^¼ cannot be: of two optimizers one is Muon's kind."""
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 1, bias=False))
    with torch.no_grad():
        model.get_parameter("0.weight").fill_(1e-3)[0, 0] = 9
    parts = [torch.optim.SGD(model[0].parameters(), lr=0.0), torch.optim.Adam(model[1].parameters(), lr=0.0)]
    s = acdc.attach(model, parts, acdc.ACDC(sparsity=0.75, schedule=two_phases(1, 2), criterion="preconditioned"))
    for _ in range(2):
        model(torch.ones(2, 4)).sum().backward()
        for part in parts:
            part.step()
    assert s.context.second_moments == {}
    assert s.masks["1.weight"].all()
    assert s.masks["0.weight"].sum() == 1


def stepped(new_optimizer, gradients: Sequence[Sequence[list[float] | None]]) -> acdc.Sparsifier:
    """Two layers of ones, after steps with these gradients, or none, that move nothing."""
    model = nn.Sequential(nn.Linear(2, 1, bias=False), nn.Linear(2, 1, bias=False))
    for param in model.parameters():
        nn.init.ones_(param)
    optimizer = new_optimizer(model)
    method = acdc.ACDC(sparsity=0.5, schedule=two_phases(len(gradients), 2), criterion="preconditioned")
    s = acdc.attach(model, optimizer, method)
    for rows in gradients:
        s.begin_step()
        for param, row in zip(model.parameters(), rows, strict=True):
            param.grad = None if row is None else torch.tensor([row])
        for part in optimizer if isinstance(optimizer, list) else [optimizer]:
            part.step()
    return s


def scores_of(s: acdc.Sparsifier) -> list[float]:
    scores = s.method.criterion.scores(s.context, s.context.budgets)  # pyright: ignore[reportAttributeAccessIssue]
    return torch.cat([score.flatten() for score in scores.values()]).tolist()


def test_preconditioned_weighs_a_layer_that_began_late_like_the_others():
    """Adam divides by the root of v / (1 − β₂ᵗ), with t and β₂ of each parameter."""

    def adam(model):
        groups = [{"params": model[0].parameters()}, {"params": model[1].parameters(), "betas": (0.9, 0.99)}]
        return torch.optim.Adam(groups, lr=0.0)

    late = stepped(adam, [[[1.0, 16.0], None]] * 8 + [[[1.0, 16.0], [1.0, 16.0]]] * 2)
    assert scores_of(late) == pytest.approx([1, 4, 1, 4], rel=1e-5)


def test_preconditioned_says_that_a_layer_is_not_trained():
    s = stepped(lambda model: torch.optim.Adam(model.parameters(), lr=0.0), [[[1.0, 16.0], None]] * 2)
    with pytest.warns(
        acdc.SparsityWarning, match=r"1\.weight has had no gradient yet, so all .* by magnitude at step 2"
    ):
        s.begin_step()
    assert sum(int(mask.sum()) for mask in s.masks.values()) == 2


def test_preconditioned_takes_the_mean_off_where_the_optimizer_does():
    """Centred RMSprop divides by the root of the mean of squares less the square of the mean."""
    flat, wild = [[100.0, 1.0], [1.0, 1.0]], [[100.0, -1.0], [1.0, -1.0]]
    s = stepped(
        lambda model: torch.optim.RMSprop(model.parameters(), lr=0.0, alpha=0.5, centered=True), [flat, wild] * 20
    )
    one = s.context.second_moments["0.weight"].fourth_root().flatten().tolist()
    (param, _), state = s.context.model.parameters(), s.context.optimizer.state
    variance = state[param]["square_avg"] - state[param]["grad_avg"].square()
    assert one == pytest.approx((variance**0.25).flatten().tolist(), rel=1e-4)
    assert one[0] < one[1], "the first gradient is large and always the same"


def test_preconditioned_is_magnitude_under_states_that_mean_something_else():
    class Rotated(torch.optim.Adam):
        """Keeps its squares of rotated gradients, as SOAP does."""

        keeps_zeros = True

        def step(self, closure=None):
            super().step()
            for state in self.state.values():
                state["GG"] = torch.zeros(2, 2)

    assert _Adaptive(lambda params: Rotated(params, lr=0.0)).scores is None

    def adam_and_adagrad(model):
        return [
            torch.optim.Adam(model[0].parameters(), lr=0.0),
            torch.optim.Adagrad(model[1].parameters(), lr=0.0),  # sums, where Adam has means
        ]

    assert stepped(adam_and_adagrad, [[[1.0, 16.0], [1.0, 16.0]]] * 2).context.second_moments == {}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own module
def test_preconditioned_is_magnitude_if_processes_hold_states_of_different_weights():
    from torch.distributed.optim import ZeroRedundancyOptimizer

    class Zero(torch.optim.Adam):  # stands for ZeroRedundancyOptimizer, which needs several processes
        def consolidate_state_dict(self) -> None: ...

    assert _Adaptive(lambda params: Zero(params, lr=0.0)).scores is None
    assert callable(ZeroRedundancyOptimizer.consolidate_state_dict)


def test_preconditioned_is_chosen_with_epochs():
    assert acdc.ACDC(sparsity=0.9, epochs=4).criterion == Preconditioned()
    assert acdc.ACDC(sparsity=0.9, epochs=4).for_steps(100).criterion == Preconditioned()
    assert acdc.ACDC(sparsity=0.9, epochs=4, criterion="magnitude").for_steps(100).criterion == Magnitude()
    assert acdc.ACDC.paper(sparsity=0.9, epochs=4).criterion == Magnitude()
    assert acdc.ACDC(sparsity=0.9, schedule="imagenet").criterion == Magnitude()
    assert acdc.ACDC(sparsity=0.5, epochs=4, pattern=acdc.Block(4, 4)).criterion == Magnitude()
    line = acdc.ACDC(sparsity=0.9, epochs=4).for_steps(100).choices_made()[0]
    assert "; weights ranked by |θ|, under Adam by |θ|·v^¼ (v: its mean squared gradients)" in line
    assert "ranked" not in acdc.ACDC(sparsity=0.9, epochs=4, criterion="saliency").for_steps(100).choices_made()[0]


def test_saliency_by_hand():
    """|θ·g| = [4, 6, 2, 10] of the last step, [4, 6, 22, 10] with the one before."""
    gradients: list[list[float]] = [[0, 0, 10, 0], [1, -2, 1, 10]]
    assert pruned_by(Saliency(steps=1), [4, 3, 2, -1], gradients).masks == "0101"
    assert pruned_by(Saliency(steps=2), [4, 3, 2, -1], gradients).masks == "0011"


def test_movement_by_hand():
    """S = −Σ θ·g = [−4, 6, 0, 9]: 4 shrinks; 3 and −1 grow."""
    assert pruned_by("movement", [4, 3, 2, -1], [[1, 0, 0, 9], [0, -2, 0, 0]]).masks == "0101"


def test_movement_keeps_what_shrinks_least():
    """S = [−4, −3, −2, −1], all negative: the largest are −2 and −1."""
    assert pruned_by("movement", [4, 3, 2, 1], [[1, 1, 1, 1]]).masks == "0011"


def test_movement_does_not_bring_back_what_is_pruned():
    """GMP at .25, then .5: the pruned weight stands still, S = 0, and still comes last."""
    method = GMP(sparsity=0.5, initial=0.25, schedule=two_phases(1, 3), end=0.75, every="2st", criterion="movement")
    t = Tiny(method, [4, 3, 2, 1], lr=0.0)
    t.step([0, 0, 0, 1])
    t.step([1, 1, 1, 0])
    assert t.masks == "1110"
    t.step([2, 1, 1, 0])
    t.step()
    assert t.masks == "0110"


def test_snip_of_an_example_at_initialisation():
    """f = −log softmax at class 0 has the gradient (p − 1, p)·x: with p = ½ both rows score |θ·x| / 2."""
    model = nn.Linear(4, 2, bias=False)
    weights = torch.tensor([[1.0, 2, 3, 4], [1, 2, 3, 4]])
    with torch.no_grad():
        model.weight.copy_(weights)
    inputs = torch.tensor([[8.0, 1, 1, 1]])
    snip = Snip(example=(inputs, torch.tensor([0])))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    s = acdc.attach(model, optimizer, OneShot(sparsity=0.5, schedule=sparse_for(2), criterion=snip))
    model(inputs)
    assert s.masks["weight"].tolist() == [[True, False, False, True]] * 2  # |θ·x| = 8, 2, 3, 4
    assert model.weight.grad is None


def test_synflow_by_hand():
    """Two layers, R = Σ |W₂||W₁|1: a weight's score is the product of magnitudes over all paths through it.

    W₁ = [[1, 1], [5, 0.1]], W₂ = [[3, −1]]: W₁ scores [[3, 3], [5, .1]], W₂ scores [3·2, 1·5.1].
    """
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 1, bias=False))
    with torch.no_grad():
        model.get_parameter("0.weight").copy_(torch.tensor([[1.0, -1], [-5, 0.1]]))
        model.get_parameter("1.weight").copy_(torch.tensor([[3.0, -1]]))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    method = OneShot(sparsity=0.5, schedule=sparse_for(2), criterion=SynFlow(shape=(1, 2), rounds=1))
    s = acdc.attach(model, optimizer, method)
    scores = method.criterion.scores(s.context, s.context.budgets)
    assert scores is not None
    torch.testing.assert_close(scores["0.weight"], torch.tensor([[3, 3], [5, 0.1]], dtype=torch.float64))
    torch.testing.assert_close(scores["1.weight"], torch.tensor([[6, 5.1]], dtype=torch.float64))
    s.begin_step()
    assert s.masks["0.weight"].tolist() == [[False, False], [True, False]]
    assert s.masks["1.weight"].tolist() == [[True, True]]


def test_synflow_in_rounds_keeps_paths():
    """In one round an all-important narrow layer may go whole; in many it does not, as scores follow what is left."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(50, 50), nn.ReLU(), nn.Linear(50, 50), nn.ReLU(), nn.Linear(50, 2))
    before = {key: value.clone() for key, value in model.state_dict().items()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    method = OneShot(sparsity=0.99, schedule=sparse_for(2), criterion=SynFlow(shape=(1, 50)))
    s = acdc.attach(model, optimizer, method)
    method.criterion.scores(s.context, s.context.budgets)
    assert_same_bits(before, dict(model.state_dict()))  # worked on a copy
    s.begin_step()
    assert all(mask.any() for mask in s.masks.values())
    assert model(torch.ones(1, 50)).requires_grad


# WoodFisher


def test_woodbury_is_the_inverse_of_the_damped_fisher():
    torch.manual_seed(0)
    gradients = torch.randn(7, 3, 5, dtype=torch.float64)  # 7 samples, 3 blocks of 5
    inverse = (torch.eye(5, dtype=torch.float64) / 1e-2).repeat(3, 1, 1)
    for gradient in gradients:
        add_gradient_(inverse, gradient, 7)
    fisher = torch.einsum("nbi,nbj->bij", gradients, gradients) / 7 + 1e-2 * torch.eye(5, dtype=torch.float64)
    torch.testing.assert_close(inverse, torch.linalg.inv(fisher))


def test_woodfisher_scores_are_the_direct_ones():
    """A layer of 6 in blocks of 4: the last block holds 2."""
    torch.manual_seed(0)
    weights = [3.0, -1, 2, 0.5, 1, -2]
    gradients = torch.randn(4, 6)
    woodfisher = WoodFisher(steps=4, block=4, damping=1e-2, update=False)
    t = Tiny(acdc.ACDC(sparsity=0.5, schedule=two_phases(4, 2), criterion=woodfisher), weights, lr=0.0)
    for gradient in gradients:
        t.step(gradient.tolist())
    expected = []
    for part in (slice(0, 4), slice(4, 6)):
        g = gradients[:, part]
        inverse = torch.linalg.inv(g.T @ g / 4 + 1e-2 * torch.eye(g.shape[1]))
        expected += (torch.tensor(weights[part]) ** 2 / (2 * inverse.diagonal())).tolist()
    scores = woodfisher.scores(t.sparsifier.context, t.sparsifier.context.budgets)["0.weight"].flatten()
    torch.testing.assert_close(scores, torch.tensor(expected), rtol=1e-4, atol=1e-5)
    t.begin()
    kept = sorted(range(6), key=lambda i: -expected[i])[:3]
    assert [i for i, c in enumerate(t.masks) if c == "1"] == sorted(kept)
    assert "criterion" not in t.sparsifier.context.memory


def test_woodfisher_update_by_hand():
    """Two weights that move together, g = (1, 1), λ = 1, n = 1: F = [[2, 1], [1, 2]], F⁻¹ = ⅓ [[2, −1], [−1, 2]].

    θ = (1, 3): scores 1²·3/4 and 9·3/4. Pruning the first adds −1/(2/3) · (−1/3) = ½ to the second.
    """
    t = pruned_by(WoodFisher(steps=1, damping=1.0), [1, 3], [[1, 1]])
    assert t.weights == [0, 3.5]
    twin = t.sparsifier.context.twin
    assert twin is not None
    assert twin.model["0.weight"].tolist() == [[1, 3]]  # before the update
    assert pruned_by(WoodFisher(steps=1, damping=1.0, update=False), [1, 3], [[1, 1]]).weights == [0, 3]


def test_woodfisher_says_that_gradients_are_too_few():
    with warned() as messages:
        pruned_by(WoodFisher(steps=8), [1, 3], [[1, 1], [1, 1]])
    expected = "saw 2 gradients of 8 before the compression at step 2: the damping of 1e-05 counts 4 times"
    assert [expected in message for message in messages] == [False, True]  # the first is that of attaching


def test_woodfisher_foresees_that_gradients_will_be_too_few():
    """As a sparsifier is attached, by the gradients that each compression then does see."""
    pairs = [("dense", "3st"), ("sparse", "1st"), ("dense", "1st"), ("sparse", "2st")]
    said = "criterion.steps=4: WoodFisher sees fewer gradients than that before 2 of 2 compressions, 2 before the one"
    with warned() as messages:
        method = acdc.ACDC(sparsity=0.5, schedule=acdc.Schedule.from_phases(pairs), criterion=WoodFisher(steps=4))
        t = Tiny(method, [1, 3], lr=0.0)
    assert messages == [
        f"{said} at step 5, where the damping of 1e-05 counts 2 times as much; set steps to 2, or leave more steps "
        "between compressions"
    ]
    with warned() as messages:
        for _ in range(6):
            t.step([1, 1])
    assert "saw 3 gradients of 4 before the compression at step 3" in messages[0]
    assert "saw 2 gradients of 4 before the compression at step 5" in messages[1]
    gmp = GMP(sparsity=0.5, schedule=two_phases(4, 6), end=1, every="3st", criterion=WoodFisher(steps=4))
    assert "2 of 3 compressions, 2 before the one at step 9" in gmp.warnings(10, None)[0]  # at 4, 7 and 9
    few = acdc.ACDC(sparsity=0.5, schedule=two_phases(4, 2), criterion=WoodFisher(steps=4))
    assert not few.warnings(6, None)
    assert not acdc.ACDC(sparsity=0.5, schedule=two_phases(4, 2), criterion="saliency").warnings(6, None)


def test_woodfisher_says_that_a_block_is_singular():
    with warned() as messages:
        t = pruned_by(WoodFisher(steps=1, block=1), [1, 3, 9, 8], [[1, 1, 0, 0]])
    assert messages == ["WoodFisher saw no gradient in 2 blocks, so the damping alone scores them"]
    assert t.masks == "1100"  # a weight that no loss depends on goes first


def test_woodfisher_refuses_what_is_not_finite():
    with pytest.raises(ValueError, match=r"inverse Fisher matrix of 0\.weight is not finite at step 1.*damping=1e-3"):
        pruned_by(WoodFisher(steps=1), [1, 3], [[1, math.inf]])


def test_woodfisher_finds_what_magnitude_does_not():
    """A large weight on an input that is always 0 does nothing; a small one on a large input does."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    method = acdc.ACDC(sparsity=0.5, schedule=two_phases(20, 2), criterion=WoodFisher(steps=20))
    s = acdc.attach(model, optimizer, method)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[9.0, 8.0, 0.5, 0.4]]))
    for _ in range(21):
        x = torch.randn(16, 4) * torch.tensor([0, 0, 10.0, 10])
        optimizer.zero_grad()
        (model(x) - torch.randn(16, 1)).square().mean().backward()
        optimizer.step()
    assert s.masks["weight"].tolist() == [[False, False, True, True]]


# In every method that takes one


METHODS = {
    "acdc": lambda c: acdc.ACDC(sparsity=0.8, epochs=6, criterion=c),
    "gmp": lambda c: GMP(sparsity=0.8, epochs=6, criterion=c),
    "one_shot": lambda c: OneShot(sparsity=0.8, epochs=6, criterion=c),
    "dpf": lambda c: DPF(sparsity=0.8, epochs=6, begin=0.25, every="2st", criterion=c),
}


class Run:
    def __init__(self, method: str, criterion: str) -> None:
        torch.manual_seed(0)
        self.model = Net()
        self.optimizer = OPTIMIZERS["SGD momentum, Nesterov, weight decay"](self.model.parameters())
        made = METHODS[method]({"name": criterion, **KNOBS.get(criterion, {})})
        self.sparsifier = acdc.attach(self.model, self.optimizer, made, steps_per_epoch=STEPS_PER_EPOCH)

    def train(self, first: int = 0, last: int = TOTAL) -> "Run":
        for step in range(first, last):
            self.optimizer.zero_grad()
            F.cross_entropy(self.model(batch(step)[0]), batch(step)[1]).backward()
            self.optimizer.step()
        return self


@pytest.mark.parametrize("criterion", criteria.names())
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.filterwarnings("ignore:.*WoodFisher:acdc.SparsityWarning")
def test_counts_are_exact_and_runs_resume(method, criterion):
    whole = Run(method, criterion).train()
    size = whole.sparsifier.layers.size
    assert sum(int(mask.sum()) for mask in whole.sparsifier.finish().masks.values()) == size - round(0.8 * size)
    for stop in (3, 7, 11):
        first, second, file = Run(method, criterion).train(last=stop), Run(method, criterion), io.BytesIO()
        torch.save([first.model.state_dict(), first.optimizer.state_dict(), first.sparsifier.state_dict()], file)
        file.seek(0)
        parts = (second.model, second.optimizer, second.sparsifier)
        for part, state in zip(parts, torch.load(file, weights_only=True), strict=True):
            part.load_state_dict(state)
        second.train(first=stop)
        assert_same_bits(dict(whole.model.state_dict()), dict(second.model.state_dict()))


def test_gradients_are_looked_at_only_before_a_compression():
    run = Run("gmp", "saliency")  # updates at steps 8, 12, 16, 18
    looked = [s for s in range(TOTAL) if run.sparsifier.method.observes_at(run.sparsifier.context, s)]
    updates = [s for s in range(TOTAL) if run.sparsifier.method.updates_at(run.sparsifier.context, s)]
    first = run.sparsifier.method.schedule.starts(run.sparsifier.context.steps_per_epoch)[1][0]
    assert looked == sorted({s - n for s in (first, *updates) for n in (1, 2)})


def test_a_fused_optimizer_s_scaled_gradients_count_alike():
    masks = []
    for scale in (1.0, 1024.0):
        torch.manual_seed(0)
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
        method = acdc.ACDC(sparsity=0.8, schedule=two_phases(3, 2), criterion=WoodFisher(steps=3))
        s = acdc.attach(model, optimizer, method)
        scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        for step in range(4):
            optimizer.zero_grad()
            scaler.scale(F.cross_entropy(model(batch(step)[0]), batch(step)[1])).backward()
            scaler.step(optimizer)
            scaler.update()
        masks.append(s.masks)
    assert_same_bits(*masks)


# Names and refusals


def test_found_by_name_table_or_itself():
    assert criteria.build("magnitude") == Magnitude()
    assert criteria.build({"name": "woodfisher", "steps": 7}) == WoodFisher(steps=7)
    assert criteria.build(SynFlow(shape=[1, 3])) == SynFlow(shape=(1, 3))
    assert acdc.ACDC(sparsity=0.9, epochs=4).config()["criterion"] == "Preconditioned()"
    assert acdc.ACDC(sparsity=0.9, epochs=4, criterion="magnitude").config()["criterion"] is None
    assert acdc.ACDC(sparsity=0.9, epochs=4, criterion="movement").config()["criterion"] == "Movement(steps=500)"


@pytest.mark.parametrize(
    ("criterion", "message"),
    [
        ("woodfish", r"criterion='woodfish': expected one of 'magnitude', .*did you mean woodfisher\?"),
        (3, "criterion=3: expected one of"),
        ({"name": "saliency", "step": 3}, r"criterion\.step=3: saliency has the knobs steps"),
        ({"name": "saliency", "steps": 0}, r"^criterion\.steps=0: expected a whole number, 1 or more"),
        ({"name": "woodfisher", "damping": 0}, r"^criterion\.damping=0: .*write damping=1e-5"),
        ("synflow", r"SynFlow\(shape=\(1, 3, 32, 32\)\)"),
    ],
)
def test_bad_criteria(criterion, message):
    with pytest.raises(ValueError, match=message):
        acdc.ACDC(sparsity=0.9, epochs=4, criterion=criterion)


@pytest.mark.parametrize("criterion", ["saliency", "movement", "woodfisher", "snip"])
def test_no_gradient_seen(criterion):
    t = Tiny(OneShot(sparsity=0.5, schedule=sparse_for(2), criterion=criterion), [1, 2])
    with pytest.raises(
        RuntimeError, match=rf"criterion='{criterion}': no gradient was seen before .* at step 0; start with a"
    ):
        t.begin()


def test_a_checkpoint_of_another_criterion():
    t = pruned_by("saliency", [1, 2], [[1, 1]])
    other = Tiny(acdc.ACDC(sparsity=0.5, schedule=two_phases(1, 2)), [1, 2])
    with pytest.raises(ValueError, match=r"saved with criterion='Saliency\(steps=100\)'"):
        other.sparsifier.load_state_dict(t.sparsifier.state_dict())


def test_methods_that_take_none_say_so():
    with pytest.raises(ValueError, match="rigl has the knobs"):
        acdc.methods.build("rigl", sparsity=0.9, epochs=4, criterion="saliency")
