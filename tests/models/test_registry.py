"""Models by name."""

import re
import subprocess
import sys
from typing import Any

import pytest
import torch

from acdc import models
from tests.models.counting import equal_weights, on_meta

CLASSES = {"digits_net": 10, "resnet20": 10, "wrn28_10": 100, "wide_resnet": 100}
LANGUAGE = [name for name in models.names() if models.is_language_model(name)]
IMAGES = [name for name in models.names() if name not in LANGUAGE]


def test_names() -> None:
    assert {"digits_net", "resnet20", "wrn28_10", "resnet50", "mobilenet_v1"} < set(IMAGES)
    assert {"gpt-10m", "gpt-30m", "gpt-124m", "transformer-xl", "transformer-xl-base"} < set(LANGUAGE)


@pytest.mark.parametrize("name", LANGUAGE)
def test_every_language_model_is_built_with_its_vocabulary(name: str) -> None:
    model: Any = on_meta(models.build, name=name, vocabulary=1234, seed=0)
    tokens = torch.zeros(2, 16, dtype=torch.int64, device="meta")
    if name.startswith("gpt"):
        assert model(tokens).shape == (2, 16, 1234)
    else:
        assert model.log_probabilities(tokens)[0].shape == (2, 16, 1234)


@pytest.mark.parametrize("name", IMAGES)
def test_every_image_model_is_built_with_its_channels_and_classes(name: str) -> None:
    model = on_meta(models.build, name=name, classes=7, in_channels=2, seed=0)
    assert model(torch.zeros(2, 2, 64, 64, device="meta")).shape == (2, 7)


@pytest.mark.parametrize("name", models.names())
def test_one_line_about_each_and_the_count_in_it_is_true(name: str) -> None:
    line, channels = models.describe(name), 1 if name == "digits_net" else 3
    assert "\n" not in line
    assert len(line) < 100
    sizes: dict[str, int] = {"classes": CLASSES.get(name, 1000), "in_channels": channels}
    if name in LANGUAGE:
        (words,) = re.findall(r"vocabulary ([\d,]+)", line)
        sizes = {"vocabulary": int(words.replace(",", ""))}
    model = on_meta(models.build, name=name, **sizes)
    stated = re.findall(r"([\d,]+) parameters", line)
    assert stated == [f"{sum(p.numel() for p in model.parameters()):,}"] or name == "wide_resnet"


def test_seed_and_options_arrive() -> None:
    options: dict[str, Any] = {"depth": 10, "width": 1, "dropout": 0, "variant": "usual"}
    model: Any = models.build("wide_resnet", classes=10, seed=3, **options)
    assert equal_weights(model, models.build("wide_resnet", classes=10, seed=3, **options))
    assert model.stages[0][0].dropout.p == 0
    assert model.conv1.bias is None
    dropped: Any = on_meta(models.build, name="wrn28_10", classes=10, dropout=0.1)
    assert dropped.stages[0][0].dropout.p == 0.1


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("wrn2810", "wrn28_10"), ("WRN-28-10", "wrn28_10"), ("ResNet-50", "resnet50"), ("mobilenet", "mobilenet_v1")],
)
def test_an_unknown_name_is_answered_with_the_nearest(typed: str, meant: str) -> None:
    pattern = rf"name='{typed}': expected one of 'digits_net', .*; did you mean {meant}\?"
    with pytest.raises(ValueError, match=pattern):
        models.build(typed, classes=10)
    with pytest.raises(ValueError, match=pattern):
        models.describe(typed)


def test_an_unknown_name_like_no_other() -> None:
    with pytest.raises(ValueError, match=r"name='xyz': expected one of .*; .*write 'digits_net'"):
        models.build("xyz", classes=10)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("wrn28_10", {"drop_out": 0.1}, r"drop_out=0.1: wrn28_10 has the options dropout, .*mean dropout\?"),
        ("wrn28_10", {"activation": "gelu"}, r"activation='gelu': wrn28_10 has the options .*remove activation"),
        (
            "resnet50",
            {"dropout": 0.1},
            r"dropout=0.1: resnet50 has the options init, bn_splits besides .*remove dropout",
        ),
        ("wrn28_10", {"dropout": "0.1"}, r"dropout='0.1': expected a number; write, for example, dropout=0.3"),
        ("wrn28_10", {"dropout": True}, r"dropout=True: expected a number"),
        ("wide_resnet", {"depth": 28.5}, r"depth=28.5: expected a whole number; write, for example, depth=28"),
        ("wrn28_10", {"variant": 1}, r"variant=1: expected text; write, for example, variant='published'"),
        ("resnet50", {"init": "He"}, r"init='He': expected 'he' .* or 'published' .*; write init='published'"),
        ("mobilenet_v1", {"init": 2}, r"init=2: expected text; write, for example, init='he'"),
        ("resnet50", {"bn_splits": 0}, r"bn_splits=0: expected the number of parts .*1 or more; write bn_splits=2"),
        ("resnet20", {"bn_split": 2}, r"bn_split=2: resnet20 has .*; did you mean bn_splits\?"),
        ("resnet50", {"in_channels": None}, r"in_channels=None: expected a whole number"),
        ("resnet50", {"vocabulary": 100}, r"vocabulary=100: resnet50 is an image model .*; give classes instead"),
        ("gpt-10m", {"blocks": 3}, r"blocks=3: gpt-10m has the options layers, .* besides vocabulary and seed; remove"),
        ("gpt-10m", {"classes": 10}, r"classes=10: gpt-10m is a language model .*; give vocabulary instead"),
        ("gpt-10m", {"tied": 1}, r"tied=1: expected True or False .*; write, for example, tied=True"),
        ("gpt-10m", {"layers": True}, r"layers=True: expected a whole number"),
        ("gpt-10m", {"feedforward": 1.5}, r"feedforward=1.5: expected a whole number; write, for example, feedforw"),
        ("transformer-xl", {"cutoffs": 20_000}, r"cutoffs=20000: expected a list, such as \[1, 2\]; .*\(19997, "),
        ("transformer-xl", {"clamp": "1000"}, r"clamp='1000': expected a whole number; write, for example, clamp=1"),
    ],
)
def test_wrong_options_are_refused(name: str, options: dict, message: str) -> None:
    size: dict[str, Any] = {"vocabulary": 10} if name in LANGUAGE else {"classes": 10}
    with pytest.raises(ValueError, match=message):
        models.build(name, **{**size, **options})


@pytest.mark.parametrize(("name", "size"), [("gpt-10m", "vocabulary"), ("resnet20", "classes")])
def test_a_missing_size_is_named(name: str, size: str) -> None:
    with pytest.raises(ValueError, match=rf"^{size}: {name} is an? .* model and needs it; write, for .* {size}=100$"):
        models.build(name)


def test_options_of_language_models_arrive_and_are_checked() -> None:
    model: Any = on_meta(models.build, name="gpt-30m", vocabulary=100, layers=2, feedforward=64, tied=False)
    assert (len(model.blocks), model.head.weight.shape, model.context) == (2, (100, 512), 512)
    assert model.blocks[0].feedforward.up.weight.shape == (64, 512)
    model = on_meta(models.build, name="transformer-xl", vocabulary=100, layers=1, cutoffs=[10, 20], clamp=None)
    assert model.embedding.bounds == (0, 10, 20, 100)
    models.check("transformer-xl", {"cutoffs": [30_000]})
    with pytest.raises(
        ValueError, match=r"div_val=64: the 4 clusters would have widths of 1024 / 64\^i, the last .* 0"
    ):
        models.check("transformer-xl", {"div_val": 64})


def test_a_function_of_ones_own_gets_the_vocabulary() -> None:
    model: Any = models.build("acdc.models.gpt:GPT", vocabulary=11, seed=0, layers=1, width=8, heads=1)
    assert model.vocabulary == 11


def test_importing_the_registry_imports_no_model() -> None:
    code = "import sys, acdc.models; print(*(name for name in sys.modules if name.split('.')[0] in ('acdc', 'torch')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == {"acdc", "acdc._version", "acdc.models", "acdc.errors", "acdc.import_path"}
