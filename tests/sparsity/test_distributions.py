"""How many weights each layer keeps: totals exact to the weight, and the errors for everything else."""

from fractions import Fraction
from types import MappingProxyType
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn

import acdc
from acdc.sparsity.distributions import (
    NAMES,
    Budget,
    budgets,
    check_distribution,
    check_sparsity,
    describe,
    erk_densities,
    round_to_total,
    spread_evenly,
)
from acdc.sparsity.layers import Weight

many = settings(deadline=None, max_examples=150)
shapes = st.lists(st.lists(st.integers(1, 40), min_size=2, max_size=4).map(tuple), min_size=1, max_size=8)
sparsities = st.one_of(st.floats(0, 1, exclude_max=True), st.sampled_from([0.0, 0.5, 0.8, 0.9, 0.95, 0.98, 0.999]))


def weights(*shapes: tuple[int, ...], names: list[str] | None = None) -> list[Weight]:
    """Layers of these shapes, without the memory."""
    names = names or [f"layer{i}.weight" for i in range(len(shapes))]
    return [
        Weight(name, nn.Parameter(torch.empty(shape, device="meta")), nn.Identity(), "linear")
        for name, shape in zip(names, shapes, strict=True)
    ]


# Totals


@many
@given(shapes, sparsities)
def test_totals_are_exact_and_equal(shapes: list[tuple[int, ...]], sparsity: float) -> None:
    layers = weights(*shapes)
    size = {w.name: w.param.numel() for w in layers}
    total = sum(size.values())
    assume(round(sparsity * total) < total)
    for distribution in NAMES:
        shares = budgets(distribution, layers, sparsity)
        keep = sum(budget.keep for budget in shares)
        assert keep == total - round(sparsity * total)
        assert [name for budget in shares for name in budget.names] == list(size)
        assert all(0 <= budget.keep <= sum(size[name] for name in budget.names) for budget in shares)


@many
@given(shapes, sparsities)
def test_uniform_is_uniform_to_the_rounding(shapes: list[tuple[int, ...]], sparsity: float) -> None:
    layers = weights(*shapes)
    total = sum(w.param.numel() for w in layers)
    assume(round(sparsity * total) < total)
    shares = budgets("uniform", layers, sparsity)
    density = Fraction(sum(b.keep for b in shares), total)
    rescued = sum(density * w.param.numel() < 1 for w in layers)  # they may take a weight each from larger ones
    assert all(abs(b.keep - density * w.param.numel()) < 1 + rescued for b, w in zip(shares, layers, strict=True))
    assert rescued or all(b.keep >= 1 for b in shares)


@many
@given(shapes, st.floats(0, 1))
def test_erk_densities_follow_the_formula(shapes: list[tuple[int, ...]], share: float) -> None:
    """Below 1, density · size / sum of dimensions is one and the same number; no capped layer would fall below 1."""
    sizes = [torch.Size(shape).numel() for shape in shapes]
    keep = int(share * sum(sizes))
    densities = erk_densities(shapes, keep)
    assert sum(d * n for d, n in zip(densities, sizes, strict=True)) == keep
    scales = [d * n / sum(shape) for d, n, shape in zip(densities, sizes, shapes, strict=True)]
    free = {scale for scale, d in zip(scales, densities, strict=True) if d < 1}
    assert len(free) <= 1
    assert all(0 <= d <= 1 for d in densities)
    assert all(scale <= max(free) for scale, d in zip(scales, densities, strict=True) if d == 1 and free)


def test_erk_by_hand() -> None:
    """Sums of dimensions 20, 60, 5. 170 weights would give 40, 120 and 10, but the last has only 6; 164 are left for
    the others, 2.05 for each of 80."""
    shapes = [(10, 10), (40, 20), (2, 3)]
    assert erk_densities(shapes, 170) == [Fraction(41, 100), Fraction(123, 800), Fraction(1)]
    shares = budgets("erk", weights(*shapes), 1 - 170 / 906)
    assert [budget.keep for budget in shares] == [41, 123, 6]


def test_erk_caps_a_layer_that_another_cap_pushes_over() -> None:
    """87 / 51 of the sums 4, 7, 40 exceeds only the first layer; 83 / 47 then also exceeds the second's 12."""
    assert erk_densities([(2, 2), (3, 4), (20, 20)], 87) == [Fraction(1), Fraction(1), Fraction(71, 400)]


def test_erk_counts_the_kernel() -> None:
    """Evci et al.: (8 + 4 + 3 + 3) / (8 · 4 · 3 · 3) against (6 + 12) / 72, equal sums, so equal counts."""
    assert [b.keep for b in budgets("erk", weights((8, 4, 3, 3), (6, 12)), 0.9)] == [18, 18]


def test_erk_at_both_ends() -> None:
    shapes = [(10, 10), (3, 2)]
    assert erk_densities(shapes, 0) == [0, 0]
    assert erk_densities(shapes, 106) == [1, 1]


def test_global_is_one_budget() -> None:
    (budget,) = budgets("global", weights((100, 10), (5, 2)), 0.9)
    assert budget == Budget(("layer0.weight", "layer1.weight"), 101)


@many
@given(st.lists(st.integers(0, 50), min_size=1, max_size=8), st.integers(0, 200))
def test_rounding_by_largest_remainders(parts: list[int], total: int) -> None:
    assume(sum(parts))
    shares = [Fraction(part * total, sum(parts)) for part in parts]
    whole = round_to_total(shares, total)
    assert sum(whole) == total
    up = [count > share for count, share in zip(whole, shares, strict=True)]
    down = [count < share for count, share in zip(whole, shares, strict=True)]
    assert all(abs(count - share) < 1 for count, share in zip(whole, shares, strict=True))
    for i, share in enumerate(shares):  # who is rounded up has the larger remainder, or the same and comes first
        for j, other in enumerate(shares):
            assert not (up[i] and down[j]) or (-(share % 1), i) < (-(other % 1), j)


def test_uniform_rounds_to_the_total() -> None:
    """One in ten of 5, 5, 5 and 5: two survive, the earlier layers first."""
    assert [b.keep for b in budgets("uniform", weights(*[(5, 1)] * 4), 0.9)] == [1, 1, 0, 0]


@pytest.mark.parametrize("distribution", NAMES)
def test_a_sparsity_that_leaves_nothing_is_refused(distribution: str) -> None:
    with pytest.raises(ValueError, match=r"sparsity=0\.99: it would prune all of the 13 prunable weights"):
        budgets(distribution, weights((2, 5), (3, 1)), 0.99)


def test_the_paper_s_models() -> None:
    """ResNet50's 25,502,912 prunable weights at 90 %."""
    (budget,) = budgets("global", weights((25_502_912, 1)), 0.9)
    assert budget.keep == 2_550_291


# Mappings


LAYERS = ["conv1.weight", "layer1.conv1.weight", "layer1.conv2.weight", "fc.weight"]


def by_mapping(mapping: dict[str, float], sparsity: float | None = None) -> dict[str, int]:
    shares = budgets(mapping, weights(*[(100, 10)] * 4, names=LAYERS), sparsity)
    assert all(len(budget.names) == 1 for budget in shares)
    return {budget.names[0]: budget.keep for budget in shares}


def test_mapping_by_patterns_with_a_default() -> None:
    assert by_mapping({"layer1.*": 0.8, "fc": 0.5}, 0.9) == {
        "conv1.weight": 100,
        "layer1.conv1.weight": 200,
        "layer1.conv2.weight": 200,
        "fc.weight": 500,
    }


def test_mapping_may_name_every_layer_and_need_no_default() -> None:
    assert list(by_mapping({"conv1": 0.1, "layer1": 0.2, "fc.weight": 0.0}).values()) == [900, 800, 800, 1000]


def test_the_first_rule_that_matches_counts() -> None:
    assert by_mapping({"layer1.conv1": 0.5, "*": 0.9})["layer1.conv1.weight"] == 500
    assert by_mapping({"*": 0.9, "layer1.conv1": 0.5})["layer1.conv1.weight"] == 100


def test_layers_a_mapping_leaves_out_are_named() -> None:
    with pytest.raises(ValueError, match=r"no sparsity for conv1\.weight, fc\.weight; add them, exclude them, or set"):
        by_mapping({"layer1": 0.8})


def test_a_mapping_of_no_layer_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"distribution\['layer2\.\*'\]=0\.8: it matches no prunable layer.*layer1\.conv2"
    ):
        by_mapping({"fc": 0.5, "layer2.*": 0.8}, 0.9)


@pytest.mark.parametrize("mapping", [{"fc": 0.5, "0": 0.8}, MappingProxyType({"fc": 0.5, "0": 0.8})], ids=type)
def test_any_mapping_will_do(mapping) -> None:
    check_distribution(mapping)
    model = nn.ModuleDict({"0": nn.Linear(10, 10), "fc": nn.Linear(10, 10)})
    method = acdc.ACDC(distribution=mapping, epochs=4)
    assert [budget.keep for budget in method.budgets(method.layers(model))] == [20, 50]


# Groups


def test_groups_and_the_rest_each_ranked_globally() -> None:
    shares = budgets({"layer1.*": {"global": 0.5}}, weights(*[(100, 10)] * 4, names=LAYERS), 0.8)
    assert shares == [Budget(("conv1.weight", "fc.weight"), 400), Budget(tuple(LAYERS[1:3]), 1000)]


def test_a_group_may_be_spread_by_any_distribution() -> None:
    layers = weights((10, 10), (40, 20), (2, 3), (5, 4), names=["a.0", "a.1", "a.2", "b"])
    shares = budgets({"a.*": {"erk": 1 - 170 / 906}, "b": {"uniform": 0.5}}, layers, None)
    assert shares == [Budget(("a.0",), 41), Budget(("a.1",), 123), Budget(("a.2",), 6), Budget(("b",), 10)]


def test_numbers_beside_groups_are_single_layers() -> None:
    shares = budgets({"layer1.*": 0.8, "fc": {"global": 0.5}}, weights(*[(100, 10)] * 4, names=LAYERS), 0.9)
    assert [(budget.names, budget.keep) for budget in shares] == [
        (("conv1.weight",), 100),
        (("layer1.conv1.weight",), 200),
        (("layer1.conv2.weight",), 200),
        (("fc.weight",), 500),
    ]


@many
@given(shapes, shapes, sparsities, sparsities, st.sampled_from(NAMES))
def test_groups_are_exact_to_the_weight(
    one: list[tuple[int, ...]], two: list[tuple[int, ...]], own: float, other: float, kind: str
) -> None:
    names = [f"a.{i}" for i in range(len(one))] + [f"b.{i}" for i in range(len(two))]
    layers = weights(*one, *two, names=names)
    totals = [sum(w.param.numel() for w in layers if w.name.startswith(part)) for part in "ab"]
    assume(round(own * totals[0]) < totals[0] and round(other * totals[1]) < totals[1])
    shares = budgets({"a.*": {kind: own}}, layers, other)
    kept = [sum(budget.keep for budget in shares if budget.names[0].startswith(part)) for part in "ab"]
    assert kept == [totals[0] - round(own * totals[0]), totals[1] - round(other * totals[1])]
    assert sorted(name for budget in shares for name in budget.names) == sorted(names)
    assert all(len({name[0] for name in budget.names}) == 1 for budget in shares), "no budget crosses a group"


class Words(nn.Module):
    """An embedding tied to the output, and two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.up, self.down = nn.Embedding(40, 10), nn.Linear(10, 30), nn.Linear(30, 10)


GROUPS = {"embedding": {"global": 0.5}}


def masks_of(method: acdc.Method, model: nn.Module) -> dict[str, torch.Tensor]:
    sparsifier = acdc.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), method, steps_per_epoch=1)
    for _ in range(method.schedule.total_steps(1)):
        sparsifier.begin_step()
        sum(param.sum() for param in model.parameters()).backward()  # pyright: ignore[reportAttributeAccessIssue]
        sparsifier._stepper.context.optimizer.step()
    return sparsifier.masks


@pytest.mark.parametrize("equal", [False, True], ids=["random", "ties"])
@pytest.mark.filterwarnings("ignore::acdc.SparsityWarning")
def test_a_method_keeps_the_largest_of_each_group(equal: bool) -> None:
    torch.manual_seed(0)
    model = Words()
    if equal:
        for param in model.parameters():
            nn.init.ones_(param)
    sizes = {name: param.detach().abs().clone() for name, param in model.named_parameters() if param.ndim > 1}
    schedule = acdc.Schedule.from_phases([("sparse", "1ep")])
    method = acdc.ACDC(sparsity=0.8, schedule=schedule, embeddings=True, distribution=GROUPS)
    masks = masks_of(method, model)
    kept = {name: int(mask.sum()) for name, mask in masks.items()}
    assert kept["embedding.weight"] == 200
    assert kept["up.weight"] + kept["down.weight"] == 120
    if equal:
        assert abs(kept["up.weight"] - kept["down.weight"]) <= 1, "ties are spread"
        return
    for group in (("embedding.weight",), ("up.weight", "down.weight")):
        flat, mask = (torch.cat([values[name].flatten() for name in group]) for values in (sizes, masks))
        assert flat[mask].min() >= flat[~mask].max()


@pytest.mark.filterwarnings("ignore::acdc.SparsityWarning")
def test_gradual_methods_approach_each_group_s_own_target() -> None:
    method = acdc.methods.GMP(sparsity=0.8, epochs=8, embeddings=True, distribution=GROUPS)
    layers = method.layers(Words())
    half = method.budgets_along(layers, lambda sparsity: sparsity / 2)
    assert [budget.keep for budget in half] == [300, 360]
    masks = masks_of(method, Words())
    assert int(masks["embedding.weight"].sum()) == 200


def test_the_rest_has_the_method_s_own_distribution() -> None:
    method = acdc.methods.RigL(sparsity=0.8, epochs=4, embeddings=True, distribution={"embedding": {"uniform": 0.5}})
    assert [len(budget.names) for budget in method.budgets(method.layers(Words()))] == [1, 1, 1]
    with pytest.raises(
        ValueError, match=r"^distribution\['embedding'\]='global': RigL starts from random masks.*'erk'"
    ):
        acdc.methods.RigL(sparsity=0.8, epochs=4, embeddings=True, distribution=GROUPS)


def test_groups_are_plain_data_and_need_no_sparsity_if_they_name_all() -> None:
    mapping = MappingProxyType({"embedding": MappingProxyType({"global": 0.5}), "*o*n": {"erk": 0.25}, "up": 0.5})
    method = acdc.ACDC(epochs=4, embeddings=True, distribution=mapping)
    assert method.config()["distribution"] == {"embedding": {"global": 0.5}, "*o*n": {"erk": 0.25}, "up": 0.5}
    assert [budget.keep for budget in method.budgets(method.layers(Words()))] == [200, 150, 225]


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ({"embedding": {"global": 0.5}, "*": {"global": 0.8}}, r"'\*'\]=.*matches embedding.weight, which 'embedding'"),
        ({"up": {"global": 0.5}, "up.weight": 0.8}, r"'up.weight'\]=0.8: it matches up.weight, which 'up' matches too"),
        ({"emb": {"global": 0.5}}, r"'emb'\]=.*it matches no prunable layer; the layers are embedding.weight, up"),
        ({"up": {}}, r"'up'\]=\{\}: a group has one of 'global', 'uniform', 'erk', and its sparsity; write \{'global'"),
        ({"up": {"global": 0.5, "erk": 0.5}}, r"'up'\]=.*: a group has one of 'global', 'uniform', 'erk'"),
        ({"up": {"layerwise": 0.5}}, r"'up'\]=.*: a group has one of 'global', 'uniform', 'erk'"),
        ({"up": {"global": 80}}, r"'up'\]\['global'\]=80: .*for 80 % write distribution\['up'\]\['global'\]=0.8"),
        ({"up": {"global": 0.9999}}, r"'up'\]\['global'\]=0.9999: it would prune all of the 300 prunable weights"),
    ],
)
def test_bad_groups_are_refused(mapping: dict, message: str) -> None:
    with pytest.raises(ValueError, match=rf"^distribution\[{message}"):  # noqa: PT012
        method = acdc.ACDC(sparsity=0.8, epochs=4, embeddings=True, distribution=mapping)
        method.budgets(method.layers(Words()))


def test_layers_in_no_group_need_a_sparsity() -> None:
    method = acdc.ACDC(epochs=4, embeddings=True, distribution=GROUPS)
    with pytest.raises(ValueError, match=r"^distribution=.*it has no sparsity for up.weight, down.weight; add them"):
        method.budgets(method.layers(Words()))


def test_embeddings_in_a_group_must_be_pruned_at_all() -> None:
    method = acdc.ACDC(sparsity=0.8, epochs=4, distribution=GROUPS)
    with pytest.raises(ValueError, match=r"matches no prunable layer.*, write embeddings=True \(in a recipe method\."):
        method.budgets(method.layers(Words()))


def test_descriptions() -> None:
    assert [describe(each) for each in ("erk", {"a": 0.5}, GROUPS)] == ["erk", "by layer", "by group"]


def test_a_budget_spread_evenly() -> None:
    layers = weights((10, 10), (50, 2), (1, 1), names=["a", "b", "c"])
    assert spread_evenly([Budget(("a", "c"), 20), Budget(("b",), 7)], layers) == {"a": 19, "c": 1, "b": 7}


# Errors


def test_a_percentage_is_recognised() -> None:
    with pytest.raises(ValueError, match=r"sparsity=90: .*for 90 % write sparsity=0\.9$"):
        check_sparsity("sparsity", 90)
    with pytest.raises(ValueError, match=r"for 97\.5 % write sparsity=0\.975$"):
        acdc.ACDC(sparsity=97.5, epochs=4)


@pytest.mark.parametrize("value", [-0.1, 1.0, 1, 100, True, False, "0.9", None, float("nan"), float("inf"), [0.9]])
def test_what_is_not_a_sparsity_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"^target=.*: sparsity is the fraction of zeros, at least 0 and below 1"):
        check_sparsity("target", value)


@pytest.mark.parametrize("value", [1, 1.0, True])
def test_all_zeros_is_not_taken_for_one_percent(value: object) -> None:
    with pytest.raises(ValueError, match="sparsity") as error:
        check_sparsity("sparsity", value)
    assert "0.01" not in str(error.value)


@pytest.mark.parametrize("value", [0, 0.0, 0.5, 0.999999])
def test_sparsities_are_returned_as_floats(value: float) -> None:
    assert check_sparsity("sparsity", value) == value
    assert isinstance(check_sparsity("sparsity", value), float)


@pytest.mark.parametrize("distribution", ["ERK", "layerwise", None, 0.9, ["global"]])
def test_an_unknown_distribution_is_refused(distribution: Any) -> None:
    with pytest.raises(ValueError, match=r"^distribution=.*: expected one of 'global', 'uniform', 'erk', or a mapping"):
        check_distribution(distribution)
    with pytest.raises(ValueError, match=r"^distribution="):
        acdc.ACDC(sparsity=0.9, epochs=4, distribution=distribution)


def test_a_bad_value_in_a_mapping_is_named() -> None:
    with pytest.raises(ValueError, match=r"distribution\['fc'\]=80: .*for 80 % write distribution\['fc'\]=0\.8"):
        check_distribution({"conv1": 0.5, "fc": 80})
