"""acdc check: every mistake at once, and costs that follow from the paper's rule."""

import re
from pathlib import Path

import pytest
import torch

from acdc import models
from acdc.cli import main
from acdc.data.data_facts import ImageFacts
from acdc.recipes import load
from acdc.train import time_estimate


@pytest.fixture(autouse=True)
def _no_data_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ACDC_DATA", str(tmp_path / "nowhere"))


DIGITS = ImageFacts(train=1397, test=400, shape=(1, 8, 8), classes=10)


def checked(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["check", *arguments, "--no-timing"]) == 0
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["check", *arguments, "--no-timing"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err


LESS = ("model.layers=1", "model.width=64", "model.heads=2")
SMALLER = {
    "wiki-gpt-124m": LESS,
    **dict.fromkeys(
        ("wikitext103-transformer-xl", "wikitext103-transformer-xl-dense"), (*LESS, "model.feedforward=32")
    ),
}
"""Settings that make large models small: weights are built, to see which are the largest."""
STEPS = {"digits": 22, "text-quick": 50, "wiki-gpt-30m": 250, "wiki-gpt-124m": 72, "wikitext2-transformer-xl": 254}
"""In an epoch, of recipes whose phases are chosen by their number."""


@pytest.mark.parametrize("name", load.shipped())
def test_every_recipe(capsys: pytest.CaptureFixture[str], name: str) -> None:
    smaller = [part for setting in SMALLER.get(name, ()) for part in ("--set", setting)]
    out, recipe = checked(capsys, name, *smaller), load.read(name)
    assert out.startswith(f"{name}: {recipe.about}\n")
    assert ("warning: data not found" in out) == (recipe.data.name != "digits")
    assert ("as published; not found here" in out) == (recipe.data.name not in ("digits", "text"))
    assert ("(imaginary: none was named)" in out) == (recipe.data.name == "text")
    assert ('warning: train.precision = "fp16"' in out) == (
        recipe.train.precision == "fp16"
    ) or torch.cuda.is_available()
    method = recipe.build_method()
    method = method.for_steps(STEPS[name], whole_epochs=True) if method and name in STEPS else method
    assert str(method.schedule if method else "dense training") in out
    assert all(line in out for line in (method.choices_made() if method else ()))
    assert ("Why: " in out) == (name in STEPS), "all others name their phases"
    assert "\x1b" not in out


def test_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    out = checked(capsys, "cifar100-wrn28-10")
    assert "data: cifar100, 50,000 training and 10,000 test images of 3 x 32 x 32, 100 classes" in out
    assert "model: wrn28_10, 36,546,980 parameters" in out
    assert "pruned: 36,518,832 weights in 29 layers" in out
    assert "batch: 128 images; 391 steps per epoch, 78,200 in all" in out
    assert "learning rate: 0.08 in epoch 0, 0.008 in epoch 76, 0.0008 in epoch 116, 8e-05 in epoch 156" in out
    assert re.search(r"^dense model +11\.9 G +1\.00x$", out, re.MULTILINE)
    assert re.search(r"^a dense run of 200 epochs +200 +0 +357\.1 P +1\.00x$", out, re.MULTILINE)
    assert re.search(r"^AC/DC +90 +110 +[\d.]+ P to [\d.]+ P +0\.50x to 0\.62x$", out, re.MULTILINE)
    assert re.search(r"^twin, fine-tuned +30 +0 +53\.56 P +0\.15x$", out, re.MULTILINE)
    assert "the paper, with these settings: inference 0.14x, training 0.51x; sparse 79.1 ± 0.07 %; AC/DC-20" in out


def test_the_cost_of_global_magnitude_is_a_range_with_room(capsys: pytest.CaptureFixture[str]) -> None:
    """The default run ends at 0.126x."""
    out = checked(capsys, "digits")
    assert re.search(r"^compressed model .* 0\.09x to 0\.13x$", out, re.MULTILINE)
    assert "and a tenth beyond either, since training decides which layers keep more" in out
    out = checked(capsys, "digits", "--set", "method.pattern=channel", "--set", "method.distribution=uniform")
    assert "weights that read a pruned channel may also end at 0, which costs less" in out


def test_what_is_rounded_is_not_called_pruned(capsys: pytest.CaptureFixture[str]) -> None:
    out = checked(capsys, "digits-4-bits", "--layers", "--set", "method.bits=3", "--set", "method.exclude=['fc']")
    assert "rounded to 3 bits: 19,088 weights in 6 layers" in out
    assert "\nLayers that are rounded to 3 bits\n" in out
    assert re.search(r"^layer +shape +weights +kept at most$", out, re.MULTILINE)
    assert "with every weight kept: how many become 0 depends on bits" in out
    assert "pruned" not in out.replace("in place of pruning", "")


def test_left_dense_and_why(capsys: pytest.CaptureFixture[str]) -> None:
    out = checked(capsys, "imagenet-resnet50", "--set", "method.first_and_last_dense=true")
    assert "left dense: conv1.weight (first or last layer (first_and_last_dense))" in out
    assert "left dense: fc.weight" in out
    assert "pruned: 23,445,504 weights in 52 layers" in out
    out = checked(capsys, "imagenet-resnet50", "--set", "method.pattern=2:4")
    assert "left dense: conv1.weight (3 input channels are not a multiple of 4)" in out
    assert "sparsity: 0.5, NM(n=2, m=4)" in out
    assert re.search(r"^compressed model \(exact\) +4\.207 G +0\.51x$", out, re.MULTILINE)


@pytest.mark.parametrize("name", ["str", "sparse_vd"])
def test_the_cost_of_a_method_that_learns_its_sparsity_is_an_upper_bound(capsys, name: str) -> None:
    out = checked(capsys, "digits", "--set", f"method.name={name}", "--set", "method.sparsity=")
    assert re.search(r"^compressed model +at most [\d.]+ M +at most 1\.00x$", out, re.MULTILINE)
    assert re.search(r"^(STR|SparseVD) .* at most 1\.00x$", out, re.MULTILINE)
    assert "an upper bound, with every weight kept" in out
    assert "exact" not in out


def test_layers_are_listed_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    out = checked(capsys, "digits", "--layers", "--set", "method.distribution=uniform")
    rows = re.findall(r"^(\S+\.weight) .* ([\d.]+)%$", out, re.MULTILINE)
    assert len(rows) == 7
    assert all(float(kept) == pytest.approx(10, abs=0.4) for _, kept in rows)
    assert "stages.0.0.conv1.weight" not in checked(capsys, "digits")


def test_what_dense_phases_may_cost_less_is_said_where_there_are_some_after_a_compression(
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = "dense phases are counted in full"
    assert said in checked(capsys, "digits")
    assert said not in checked(capsys, "digits", "--set", "method.name=gmp")


def test_a_longer_run_is_set_beside_the_paper_s_dense_one(capsys: pytest.CaptureFixture[str]) -> None:
    out = checked(capsys, "cifar100-wrn28-10", "--set", "method.schedule=cifar100_14", "--set", "model.bn_splits=4")
    assert "the paper, with these settings: training 0.47x, relative to 200 dense epochs" in out


def test_what_makes_a_run_longer_or_cheaper_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    settings = [
        "train.times=2",
        "train.label_smoothing=0.1",
        "data.first_size=4",
        "data.size_step=2",
        "rate.shape=linear",
    ]
    words = [word for setting in settings for word in ("--set", setting)]
    out = checked(capsys, "digits", "--set", "method.name=dense", "--set", "run.baseline=false", "--set",
                  "run.finetune=false", *words)  # fmt: skip
    assert "length: 2 times 40 epochs, with all phases, milestones and warm-up (train.times)" in out
    assert "images: shorter side of 4 pixels in epoch 0, 6 pixels in epoch 20, 8 pixels in epoch 40; tested at 8" in out
    assert "loss: cross-entropy, labels smoothed by 0.1 in training, not in tests" in out
    assert "learning rate: 0.025 in epoch 0, 0.1 in epoch 3, 0.001316 in epoch 79 (linear, set every epoch)" in out
    (cost,) = [line for line in out.splitlines() if line.startswith("dense  ")]
    assert cost.split()[-1] == "0.70x", "half of the epochs at full size, a quarter at .56x, a quarter at .25x"


def test_a_rival_s_figures_are_told_as_what_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    said = ["method.name=rigl", "method.sparsity=0.9", "method.distribution=uniform", 'method.exclude=["conv1"]']
    out = checked(capsys, "imagenet-resnet50", *(word for setting in said for word in ("--set", setting)))
    assert re.search(r"^compressed model \(exact\) .* 0\.13x$", out, re.MULTILINE)
    assert re.search(r"^RigL +0 +100 .* 0\.13x$", out, re.MULTILINE)
    costs = "the paper, with these settings: inference 0.13x, training 0.13x; sparse 72 %; RigL 1x, uniform, "
    assert f"{costs}first layer dense; as quoted by the paper\n" in out
    said = ["name=rigl", "sparsity=0.75", "depthwise_dense=true", 'exclude=["conv1"]']
    out = checked(capsys, "imagenet-mobilenet", "--epochs", "500", *(w for s in said for w in ("--set", f"method.{s}")))
    assert "the paper, with these settings: sparse 71.9 %; RigL 5x, ERK, 500 epochs; as quoted by the paper\n" in out
    said = ["method.name=str", "method.sparsity=", "optimizer.weight_decay=2.251757813e-5", "train.label_smoothing=0.1"]
    out = checked(capsys, "imagenet-resnet50", *(word for setting in said for word in ("--set", setting)))
    assert "the paper, with these settings: inference 0.08x; sparse 74.31 %; STR, 90.23 % sparse in the end" in out


@pytest.mark.parametrize("setting", ["method.distribution=uniform", "train.epochs=200", "model.dropout=0.2"])
def test_other_settings_are_not_the_paper_s(capsys: pytest.CaptureFixture[str], setting: str) -> None:
    assert "the paper, with these settings" not in checked(capsys, "cifar100-wrn28-10", "--set", setting)


def test_settings_that_are_allowed_and_odd(capsys: pytest.CaptureFixture[str]) -> None:
    out = checked(capsys, "cifar100-wrn28-10", "--epochs", "100", "--seeds", "0,1")
    assert "warning: rate.milestones: 116, 156 come after the last epoch, 99" in out
    assert "seeds 0, 1" in out


def test_a_run_too_short_for_its_method_to_do_anything(capsys: pytest.CaptureFixture[str]) -> None:
    error = refused(capsys, "digits", "--epochs", "2", "--set", "method.name=rigl", "--set", "method.sparsity=0.9")
    assert 'method.every="100st": the first update of RigL is due at step 100, but its last may be at step 33' in error
    assert 'write method.every="3st"' in error
    checked(capsys, "digits", "--epochs", "2", "--set", "method.name=rigl", "--set", "method.every=3st")


def test_woodfisher_with_too_few_steps_before_a_compression(capsys: pytest.CaptureFixture[str]) -> None:
    said = "warning: method.criterion.steps=100: WoodFisher sees fewer gradients than that before 7 of 8 compressions"
    paper = ("--set", "method.schedule=paper")
    assert said in checked(capsys, "digits", *paper, "--set", "method.criterion=woodfisher")
    fewer = 'method.criterion={name="woodfisher", steps=88}'
    assert "WoodFisher" not in checked(capsys, "digits", *paper, "--set", fewer)
    assert "WoodFisher" not in checked(capsys, "digits", "--set", fewer), "masks are taken so far apart"


def test_a_knob_of_a_criterion_is_named_as_it_is_set(capsys: pytest.CaptureFixture[str]) -> None:
    error = refused(capsys, "digits", "--set", 'method.criterion={name="woodfisher", steps=0}')
    assert "      method.criterion.steps=0: expected a whole number, 1 or more; write steps=100\n" in error


def test_data_that_is_there_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    settings = ("data.name=synthetic", "data.train=300", "data.test=50", "data.classes=7", "data.shape=[1, 16, 16]")
    out = checked(capsys, "digits", *(part for setting in settings for part in ("--set", setting)))
    assert "data: synthetic, 300 training and 50 test images of 1 x 16 x 16, 7 classes\n" in out
    out = checked(capsys, "digits", "--set", "data.validation=100")
    assert "1,297 training, 100 validation and 400 test" in out


# Mistakes


def test_all_mistakes_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    error = refused(capsys, "digits", "--set", "train.lr=1", "--sparsity", "2", "--device", "tpu", "--workers", "few")
    assert error.splitlines()[0] == "acdc: digits:"
    said = ("did you mean optimizer.lr?", "method.sparsity=2.0", "--device tpu: expected", "--workers few: expected")
    for text, line in zip(said, error.splitlines()[1:], strict=True):
        assert text in line


def test_mistakes_of_recipe_model_and_data_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    error = refused(capsys, "digits", "--set", "model.name=digits_nett", "--set", "model.classes=5")
    assert "model.classes: the data determines it" in error
    assert "model.name='digits_nett': expected one of" in error
    said = ("train.batch_size=4096", "method.pattern=2:7", "method.sparsity=0.9", "optimizer.lr=0")
    error = refused(capsys, "digits", *(part for setting in said for part in ("--set", setting)))
    lines = [line.strip() for line in error.splitlines()[1:]]
    starts = ("method.sparsity=0.9: NM(n=2, m=7) fixes it", "optimizer.lr = 0", "train.batch_size=4096: digits has")
    for start, line in zip((*starts, "method.pattern=NM(n=2, m=7): fits none"), lines, strict=True):
        assert line.startswith(start)
    said = ("method.name=rigl", "method.drop=3", "method.end=9", "method.every=x", "method.sparsity=2")
    error = refused(capsys, "digits", *(part for setting in said for part in ("--set", setting)))
    knobs = {re.sub(r"method\.(\w+)=.*", r"\1", line.strip()) for line in error.splitlines()[1:]}
    assert knobs == {"drop", "end", "every", "sparsity"}
    assert len(error.splitlines()) == 5


def test_what_only_model_and_data_show(capsys: pytest.CaptureFixture[str]) -> None:
    error = refused(capsys, "digits", "--set", "train.batch_size=5000", "--set", 'method.exclude=["nope"]')
    assert "train.batch_size=5000: digits has 1,397 training images" in error
    assert "method.exclude=['nope']: the rule matches no weight" in error
    error = refused(capsys, "cifar10-resnet20", "--set", "train.batch_size=60000", "--set", "data.corrupt=70000")
    assert "data.corrupt=70000: cifar10 has 50,000 training images" in error
    error = refused(capsys, "digits", "--set", "method.distribution={ nope = 0.5 }")
    assert "it matches no prunable layer" in error
    error = refused(capsys, "digits", "--device", "cpu", "--set", "train.cuda_graphs=on")
    assert 'train.cuda_graphs = "on": impossible here' in error


def test_missing_data_is_a_mistake_where_its_place_was_given(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for name in ("cifar10-resnet20", "imagenet-resnet50"):
        assert str(tmp_path / "gone") in refused(capsys, name, "--data", str(tmp_path / "gone"))


def test_fp16_is_a_mistake_where_a_cpu_was_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert "add --set train.precision=bf16" in refused(capsys, "imagenet-mobilenet", "--device", "cpu")


def test_more_threads_than_cores_are_warned_of(capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    monkeypatch.setattr("acdc.train.hardware.cores", lambda: 2)
    out = checked(capsys, "digits", "--device", "cpu", "--set", "train.threads=1000")
    assert "warning: train.threads = 1,000: this machine has 2 cores, and more threads are slower; set 2" in out
    assert "train.threads" not in checked(capsys, "digits", "--device", "cpu", "--set", "train.threads=2")


# Timing


def test_steps_are_timed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_estimate, "_ENOUGH", 0.1)
    assert main(["check", "digits", "--device", "cpu"]) == 0
    out = capsys.readouterr().out
    assert re.search(
        r"^time: about .* epochs of .* for a step of 64 images \(fp32 on 1 of \d+ cores\)$", out, re.MULTILINE
    )


def test_a_slow_step_is_measured_on_a_smaller_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_estimate, "_ENOUGH", 0.05)
    monkeypatch.setattr(time_estimate, "_SLOW", 1e-6)
    recipe = load.read("digits", ["train.precision=fp16"])
    model = models.build("digits_net", classes=10, in_channels=1, seed=0)
    found = time_estimate.measure(recipe, model, DIGITS, torch.device("cpu"))
    assert (found.batch, found.precision, found.memory) == (4, "fp32", None)
    assert found.step > 0
    assert found.evaluation > 0


def test_threads_are_left_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_estimate, "_ENOUGH", 0.01)
    before = torch.get_num_threads()
    model = models.build("digits_net", classes=10, in_channels=1, seed=0)
    found = time_estimate.measure(load.read("digits", ["train.threads=2"]), model, DIGITS, torch.device("cpu"))
    assert (found.threads, torch.get_num_threads()) == (2, before)


def test_a_crop_is_no_larger_than_the_images(capsys: pytest.CaptureFixture[str]) -> None:
    """Padding them by more asks for memory, and windows of nothing but padding."""
    for verb in (["check", "--no-timing"], ["train"]):
        assert main([*verb, "--device", "cpu", "--set", "data.crop=9"]) == 2
        assert "data.crop=9: images of digits are 8 x 8; set it to 8 or less" in capsys.readouterr().err


@pytest.mark.parametrize(
    "typed", [["train", "--out"], ["train", "--resume"], ["check"], ["report"], ["eval"], ["show"]]
)
def test_names_that_are_too_long_are_refused(typed: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*typed, "x" * 300]) == 2
    error = capsys.readouterr().err
    assert "too long" in error
    assert "use a" in error
