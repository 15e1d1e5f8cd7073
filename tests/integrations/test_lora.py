"""LoRA on a sparse base: what is trained is what is merged, and the zeros stay. With peft, and written by hand."""

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model  # pyright: ignore[reportMissingImports]
from torch import nn
from torch.nn import functional as F  # noqa: N812

from acdc.errors import ArgumentError
from acdc.integrations import lora
from tests.integrations.hf_models import gpt2, trainer


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.conv = nn.Linear(8, 16), nn.Linear(16, 4), nn.Conv1d(1, 1, 3, padding=1)
        with torch.no_grad():
            self.first.weight[torch.rand(16, 8) < 0.75] = 0.0

    def forward(self, x: Any) -> Any:
        return self.second(F.relu(self.first(self.conv(x[:, None])[:, 0])))


def adapted(**settings: Any) -> Any:
    return get_peft_model(Net(), LoraConfig(r=4, **{"target_modules": ["first", "second"], **settings}))


def train(model: Any, steps: int = 20) -> None:
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.05)
    for step in range(steps):
        x = torch.randn(16, 8, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        F.cross_entropy(model(x), x[:, :4].argmax(1)).backward()
        optimizer.step()


@pytest.mark.parametrize("safe", [False, True])
@pytest.mark.parametrize("settings", [{}, {"lora_bias": True}, {"lora_dropout": 0.1, "use_rslora": True}])
def test_merging_keeps_zeros_and_the_function(settings: dict[str, Any], safe: bool) -> None:
    model, before = adapted(**settings), Net()
    assert [name.rsplit(".", 1)[1] for name in lora.keep_zeros(model)] == ["first"], "the other layer has no zeros"
    train(model)
    x = torch.randn(8, 8)
    expected = model.eval()(x)
    assert not torch.allclose(expected, before(x), atol=1e-2), "it has learned something"
    model.merge_adapter(safe_merge=safe)
    model.unmerge_adapter()
    torch.testing.assert_close(model(x), expected, rtol=1e-4, atol=1e-5)
    merged = model.merge_and_unload(safe_merge=safe)
    torch.testing.assert_close(merged(x), expected, rtol=1e-4, atol=1e-5)
    assert torch.equal(merged.first.weight == 0, before.first.weight == 0)
    assert not torch.equal(merged.first.weight, before.first.weight)


def test_without_it_peft_loses_the_zeros() -> None:
    model, pruned = adapted(), Net().first.weight == 0
    train(model)
    assert int((model.merge_and_unload().first.weight == 0).sum()) < int(pruned.sum()) / 2


def test_an_adapter_that_was_saved_and_loaded(tmp_path: Path) -> None:
    model = adapted()
    lora.keep_zeros(model)
    train(model)
    model.save_pretrained(tmp_path)
    again = PeftModel.from_pretrained(Net(), tmp_path)
    lora.keep_zeros(again)
    lora.keep_zeros(again)  # twice is once
    x = torch.randn(8, 8)
    torch.testing.assert_close(again.eval()(x), model.eval()(x))


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # peft's own
def test_gpt2_in_the_trainer(tmp_path: Path) -> None:
    """Its Conv1D layers hold transposed weights."""
    base = gpt2()
    with torch.no_grad():
        for block in base.transformer.h:
            block.attn.c_attn.weight[torch.rand_like(block.attn.c_attn.weight) < 0.75] = 0.0
    zeros = [block.attn.c_attn.weight == 0 for block in base.transformer.h]
    model = get_peft_model(base, LoraConfig(r=4, target_modules=["c_attn"], fan_in_fan_out=True))
    assert len(lora.keep_zeros(model)) == 2
    trainer(model, tmp_path, num_train_epochs=2, label_names=["labels"]).train()
    x = torch.randint(0, 32, (2, 8))
    expected = model.eval()(input_ids=x).logits
    merged = model.merge_and_unload()
    torch.testing.assert_close(merged(input_ids=x).logits, expected, rtol=1e-4, atol=1e-5)
    for block, pruned in zip(merged.transformer.h, zeros, strict=True):
        assert torch.equal(block.attn.c_attn.weight == 0, pruned)


def test_by_hand() -> None:
    weight = Net().first.weight.detach().clone()
    down, up = torch.randn(4, 8, requires_grad=True), torch.zeros(16, 4, requires_grad=True)
    x = torch.randn(32, 8)
    optimizer = torch.optim.SGD([down, up], lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        F.linear(x, weight + lora.masked_update(weight, up @ down)).square().mean().backward()
        optimizer.step()
    expected = F.linear(x, weight + lora.masked_update(weight, up @ down))
    zeros = weight == 0
    lora.merge_(weight, up @ down)
    assert torch.equal(weight == 0, zeros)
    torch.testing.assert_close(F.linear(x, weight), expected)


def test_bad_input() -> None:
    with pytest.raises(ArgumentError, match="no LoRA layer whose base weight has zeros"):
        lora.keep_zeros(Net())
    with pytest.raises(ArgumentError, match=r"adapter 'default' of .*first is of another kind of LoRA, Dora"):
        lora.keep_zeros(adapted(use_dora=True))
    merged = adapted()
    merged.merge_adapter()
    with pytest.raises(ArgumentError, match=r"first are merged already; call model.unmerge_adapter\(\) first"):
        lora.keep_zeros(merged)
    sparse_conv = Net()
    nn.init.zeros_(sparse_conv.conv.weight)
    with pytest.raises(ArgumentError, match=r"linear layers only, not for .*conv \(Conv1d\)"):
        lora.keep_zeros(get_peft_model(sparse_conv, LoraConfig(r=1, target_modules=["conv"])))
