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


def test_names() -> None:
    assert {"digits_net", "resnet20", "wrn28_10", "resnet50", "mobilenet_v1"} < set(models.names())


@pytest.mark.parametrize("name", models.names())
def test_every_model_is_built_with_its_channels_and_classes(name: str) -> None:
    model = on_meta(models.build, name=name, classes=7, in_channels=2, seed=0)
    assert model(torch.zeros(2, 2, 64, 64, device="meta")).shape == (2, 7)


@pytest.mark.parametrize("name", models.names())
def test_one_line_about_each_and_the_count_in_it_is_true(name: str) -> None:
    line, channels = models.describe(name), 1 if name == "digits_net" else 3
    assert "\n" not in line
    assert len(line) < 100
    model = on_meta(models.build, name=name, classes=CLASSES.get(name, 1000), in_channels=channels)
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
    ],
)
def test_wrong_options_are_refused(name: str, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        models.build(name, classes=10, **options)


def test_importing_the_registry_imports_no_model() -> None:
    code = "import sys, acdc.models; print(*(name for name in sys.modules if name.split('.')[0] in ('acdc', 'torch')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == {"acdc", "acdc._version", "acdc.models", "acdc.errors", "acdc.import_path"}
